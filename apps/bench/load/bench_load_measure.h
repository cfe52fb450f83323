#pragma once

#include <lockstep/comm/group.h>

#include "bench/load/bench_load_result.h"

namespace lockstep {

// Collective; rank 0's result counts. How it is measured is docs/concepts/bench.md. Throws Error
// for wrong weights.
LoadBenchResult measure_load(Group group, const LoadBenchPlan& plan);

}  // namespace lockstep

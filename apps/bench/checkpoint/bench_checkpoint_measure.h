#pragma once

#include <lockstep/comm/group.h>

#include "bench/checkpoint/bench_checkpoint_result.h"

namespace lockstep {

// Collective; rank 0's result counts. How it is measured is docs/concepts/bench.md. Throws Error
// for a wrong checkpoint.
CheckpointBenchResult measure_checkpoint(Group group, const CheckpointBenchPlan& plan);

}  // namespace lockstep

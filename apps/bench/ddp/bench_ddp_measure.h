#pragma once

// Measures a training step: all variants in turn, step by step, on the same processes.

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <lockstep/comm/group.h>

#include "bench/ddp/bench_ddp_result.h"

namespace lockstep {

// Collective; every rank returns the same figures (but for the roundtrips, which are rank 0's). How
// it is measured is docs/concepts/bench.md. `gloo` is the peer's; null without one. Throws Error
// for a wrong result.
DdpBenchResult measure_ddp(Group group, c10::intrusive_ptr<c10d::Backend> gloo,
                           const DdpBenchPlan& plan);

}  // namespace lockstep

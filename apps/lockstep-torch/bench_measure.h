#pragma once

// Measures one size: all variants in turn, round by round, on the same processes.

#include "bench_case.h"
#include "bench_result.h"

namespace lockstep {

struct BenchMeasureOptions {
  BenchOperation operation = BenchOperation::AllReduce;
  at::ScalarType type = at::kFloat;
  int64_t bytes = 0;
  int repeats = 3;
  int num_nodes = 1;  // ranks are dealt to them in blocks
};

// Collective; every rank returns the same figures (but for the roundtrips, which are rank 0's). How
// it is measured is docs/concepts/bench.md. Throws Error for a wrong result.
BenchResult measure_size(Group group, const BenchPeer& peer, const BenchMeasureOptions& options);

}  // namespace lockstep

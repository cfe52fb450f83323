#pragma once

// Measures one size: all variants in turn, round by round, on the same processes.

#include <memory>

#include "bench/allreduce/bench_case.h"
#include "bench/allreduce/bench_mpi_peer.h"
#include "bench/allreduce/bench_result.h"

namespace lockstep {

struct BenchMeasureOptions {
  BenchOperation operation = BenchOperation::AllReduce;
  at::ScalarType type = at::kFloat;
  int64_t bytes = 0;
  int repeats = 3;
  int num_nodes = 1;  // ranks are dealt to them in blocks
};

// The peers are those who are measured beside us.
struct BenchPeers {
  std::vector<std::string> names;               // all of them, in the order of their turns
  BenchPeer gloo;                               // null: it is not among them
  std::vector<std::unique_ptr<MpiRanks>> mpis;  // on rank 0; the other ranks have none
};

// Collective; every rank returns the same figures, but for the roundtrips and an MPI's times, which
// rank 0 alone has. How it is measured is docs/concepts/bench.md. Throws Error for a wrong result.
BenchResult measure_size(Group group, const BenchPeers& peers, const BenchMeasureOptions& options);

}  // namespace lockstep

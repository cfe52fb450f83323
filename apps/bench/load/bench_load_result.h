#pragma once

// The figures of `lockstep bench load`, from raw times to what is printed.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/weights/weights.h>

#include "bench/load/bench_load_plan.h"

namespace lockstep {

using Seconds = std::vector<double>;  // one per repeat

struct LoadModeFigures {
  LoadMode mode = LoadMode::Each;
  Seconds cold_s;  // of the slowest rank, headers included
  Seconds warm_s;
  Seconds warm_cpu_s;                     // of the processor, all ranks together
  uint64_t bytes_read = 0;                // cold, by all ranks, as the loader counts
  uint64_t storage_bytes_read = 0;        // cold, by all ranks, as the kernel counts; the most
  int64_t extra_peak_bytes_per_rank = 0;  // above the parameters; the most of any rank and load
};

struct LoadBenchResult {
  int num_ranks = 1;
  std::string backend;
  int64_t file_bytes = 0;
  int64_t num_tensors = 0;
  LoadMode chosen = LoadMode::Each;  // by auto
  std::string reason;
  std::vector<LoadModeFigures> modes;
  Seconds sequential_cold_s;    // read(2) from the begin to the end, as cat does
  Seconds sequential_direct_s;  // the same past the page cache; empty where the file system knows
                                // no direct reads
  Seconds peer_warm_s;          // empty without a peer
  Seconds peer_warm_cpu_s;
  double cached_fraction = 0;  // of the file, at most, when a cold load began
};

std::string load_bench_json(const LoadBenchPlan& plan, const LoadBenchResult& result);
std::string load_bench_table(const LoadBenchPlan& plan, const LoadBenchResult& result);

}  // namespace lockstep

#pragma once

// The figures of `lockstep bench checkpoint`, from raw times to what is printed.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/checkpoint/bench_checkpoint_plan.h"
#include "bench/checkpoint/bench_sync_save.h"

namespace lockstep {

inline constexpr int kSavesPerRepeat = 4;  // while training goes on

struct CheckpointBenchResult {
  int num_ranks = 1;
  int64_t state_bytes = 0;
  uint64_t bytes_written = 0;  // by all ranks, in one save
  // These have kSavesPerRepeat figures per repeat.
  std::vector<double> calm_step_s;
  std::vector<double> stall_s;          // of a save while training goes on
  std::vector<double> training_save_s;  // from its begin to its commit
  // These have one figure per repeat.
  std::vector<double> save_s;                      // of a save for which all wait
  std::map<SyncSave, std::vector<double>> sync_s;  // of those by rank 0 alone, for which all wait
  std::vector<double> disk_buffered_s;             // the same bytes, one after another, with fsync
  std::vector<double> disk_direct_s;  // past the page cache; empty where that cannot be
};

std::string checkpoint_bench_json(const CheckpointBenchPlan& plan,
                                  const CheckpointBenchResult& result);
std::string checkpoint_bench_table(const CheckpointBenchPlan& plan,
                                   const CheckpointBenchResult& result);

}  // namespace lockstep

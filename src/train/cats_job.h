#pragma once

// The first training job: a small network learns on all ranks to tell cats from not-cats.

#include <cstdint>
#include <functional>
#include <vector>

#include <lockstep/comm/group.h>

#include "train/cats_config.h"

namespace lockstep {

// Who a rank is and what it got to do.
struct RankStart {
  int rank = 0;
  int num_ranks = 1;
  int64_t node = 0;
  int64_t pid = 0;
  int64_t rank_pictures = 0;  // that this rank trains on in each epoch
  int64_t num_pictures = 0;   // that all ranks train on
};

// Over all ranks.
struct EpochReport {
  int64_t epoch = 1;  // from 1 on
  int64_t num_epochs = 1;
  double loss = 0;  // mean over the epoch's pictures, each as the model was when it saw it
  double train_accuracy = 0;
  double held_out_accuracy = 0;
  double pictures_per_s = 0;  // trained on
  double seconds = 0;         // since the job began
};

struct CatsResult {
  EpochReport last;
  int64_t held_out_correct = 0;
  int64_t held_out_pictures = 0;
  int64_t num_parameters = 0;
  double seconds = 0;
  std::vector<int64_t> nodes;              // of each rank
  std::vector<uint64_t> parameter_hashes;  // of each rank, when training was over

  int num_ranks() const { return static_cast<int>(nodes.size()); }
  int num_nodes() const;
  bool same_bits() const;  // did every rank end with the same model
};

// What the program wants to hear of; empty functions are not called. The library itself prints
// nothing.
struct CatsWatcher {
  std::function<void(const RankStart&)> on_start;    // on every rank, once
  std::function<void(const EpochReport&)> on_epoch;  // on rank 0, after each epoch
};

// Collective: every rank calls it with the same config and gets the same result, which depends on
// the config and the number of ranks and on nothing else. More than one rank: each computes on one
// thread. Throws UsageError if the batch cannot be split over the ranks, CommError when a rank is
// lost.
CatsResult train_cats(const CatsConfig& config, Group group, const CatsWatcher& watcher = {});

}  // namespace lockstep

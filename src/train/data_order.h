#pragma once

// Which samples a rank reads, and when: a function of (seed, epoch) and of nothing else.

#include <cstdint>
#include <vector>

#include <lockstep/train/trainer.h>

namespace lockstep::train {

// A step's batch is cut into pieces, each with a part of the dataset of its own; a rank computes
// `num_local` of them from `first` on.
struct Pieces {
  int num_all = 1;
  int num_local = 1;
  int first = 0;
  int64_t batch_size = 1;  // of one piece
};

// Whether so many shards can be dealt to so many ranks without another sum than on other ranks.
bool can_be_dealt(int shards, int num_ranks);

// shards * accumulate pieces over the ranks. Throws UsageError, naming sizes that work, where they
// do not go together. `shards` is that of the run: the options', or the number of ranks it began
// with.
Pieces cut_into_pieces(const TrainerOptions& options, int shards, int rank, int num_ranks);

class DataOrder {
 public:
  // Throws UsageError if the dataset does not fill one batch.
  DataOrder(int64_t num_samples, uint64_t seed, Pieces pieces);

  int64_t steps_per_epoch() const { return steps_per_epoch_; }

  // What this rank reads from step `first_step` of the epoch on: piece after piece, step after
  // step.
  std::vector<int64_t> indices(int64_t epoch, int64_t first_step) const;

 private:
  int64_t num_samples_;
  uint64_t seed_;
  Pieces pieces_;
  int64_t steps_per_epoch_;
};

}  // namespace lockstep::train

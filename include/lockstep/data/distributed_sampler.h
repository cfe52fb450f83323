#pragma once

// Which samples a rank reads.

#include <cstdint>
#include <vector>

namespace lockstep {

struct SamplerOptions {
  int64_t num_samples = 0;  // REQUIRED, > 0: size of the dataset
  int num_ranks = 1;        // size of the group
  int rank = 0;             // in [0, num_ranks)
  bool shuffle = true;      // false: the order of the dataset
  bool drop_last = false;   // true: leave out the tail instead of wrapping around
  uint64_t seed = 0;        // the same on every rank, or ranks read the same samples
};

// Deals one epoch's shuffled indices round-robin to the ranks, equally many to each (the tail wraps
// around): a rank with one batch less would leave the others waiting in all_reduce for ever. The
// order is that of Python's torch.utils.data.distributed.DistributedSampler with the same seed and
// epoch. Threads: const methods may be called concurrently.
class DistributedSampler {
 public:
  // Throws UsageError when an option is out of range.
  explicit DistributedSampler(SamplerOptions options);

  // What this rank reads in `epoch`, in order. Pure: this is why a resumed run sees the same data.
  std::vector<int64_t> indices(int64_t epoch) const;

  // How many that are, the same on every rank.
  int64_t size() const;

 private:
  SamplerOptions options_;
};

}  // namespace lockstep

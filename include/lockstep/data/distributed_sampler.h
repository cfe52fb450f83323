#pragma once

// Which samples a rank reads.
//
//   SamplerOptions options{.num_samples = n, .num_ranks = group.size(), .rank = group.rank()};
//   const DistributedSampler sampler(options);
//   for (const int64_t index : sampler.indices(epoch)) { ... }
//
// Shards. A run with `shards` S deals to shards, so that its data do not depend on how many ranks
// there are: rank r of W computes shards r*S/W up to but not including (r+1)*S/W, and has one
// sampler for each, as if every shard were a rank of its own:
//
//   std::vector<DistributedSampler> samplers;
//   for (int shard = rank * S / W; shard < (rank + 1) * S / W; ++shard) {
//     samplers.emplace_back(SamplerOptions{.num_samples = n, .num_ranks = S, .rank = shard});
//   }

#include <cstdint>
#include <vector>

namespace lockstep {

struct SamplerOptions {
  int64_t num_samples = 0;  // REQUIRED, > 0: size of the dataset
  int num_ranks = 1;        // size of the group, or the number of shards
  int rank = 0;             // in [0, num_ranks): the rank, or the shard
  bool shuffle = true;      // false: the order of the dataset
  bool drop_last = false;   // true: leave out the tail instead of wrapping around
  uint64_t seed = 0;        // the same on every rank, or ranks read the same samples
};

// Deals one epoch's shuffled indices round-robin to the ranks, equally many to each (the tail wraps
// around): a rank with one batch less would leave the others waiting in all_reduce for ever. The
// indices are those of Python's torch.utils.data.distributed.DistributedSampler with the same seed
// and epoch. One difference: drop_last with fewer samples than ranks leaves nothing to read, which
// there is an empty list and here an error. Threads: const methods may be called concurrently.
class DistributedSampler {
 public:
  // Throws UsageError when an option is out of range.
  explicit DistributedSampler(SamplerOptions options);

  // What this rank reads in `epoch`, in order. Pure: this is why a resumed run sees the same data.
  // `first`, in [0, size()], leaves out what was read before a run stopped: after k batches of b
  // samples, indices(epoch, k * b) is the rest. Takes as long as torch::randperm(num_samples), or
  // less, and beside the result 4 bytes per sample of the dataset (8 from 200 million samples on).
  // Throws UsageError when `epoch` is negative, seed + epoch does not fit into 64 bits, or `first`
  // is out of range.
  std::vector<int64_t> indices(int64_t epoch, int64_t first = 0) const;

  // How many this rank reads in an epoch, the same on every rank.
  int64_t size() const;

 private:
  SamplerOptions options_;
};

}  // namespace lockstep

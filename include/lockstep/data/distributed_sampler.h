#pragma once

// DistributedSampler: which samples each rank reads.
//
// Example:
//   const lockstep::DistributedSampler sampler(
//       {.num_samples = data.size(), .num_ranks = group.size(), .rank = group.rank()});
//   for (const int64_t index : sampler.indices(epoch)) {
//     read(index);
//   }
//
// A run with `shards` S deals samples to shards, so that its data do not depend on the number of
// ranks. Rank r of W computes the shards from r*S/W up to, but not including, (r+1)*S/W. It has one
// sampler for each, as if every shard were a rank.
//
// Example:
//   const int num_shards = 8;
//   const int per_rank = num_shards / group.size();
//   std::vector<lockstep::DistributedSampler> samplers;
//   for (int shard = group.rank() * per_rank; shard < (group.rank() + 1) * per_rank; ++shard) {
//     samplers.emplace_back(lockstep::SamplerOptions{
//         .num_samples = data.size(), .num_ranks = num_shards, .rank = shard});
//   }

#include <cstdint>
#include <vector>

namespace lockstep {

struct SamplerOptions {
  int64_t num_samples = 0;  // REQUIRED, > 0: the size of the dataset
  int num_ranks = 1;        // the size of the group, or the number of shards
  int rank = 0;             // in [0, num_ranks): the rank, or the shard
  bool shuffle = true;      // false keeps the order of the dataset
  bool drop_last = false;   // true leaves out the tail instead of wrapping around
  uint64_t seed = 0;        // the same on every rank, or ranks read the same samples
};

// Deals the shuffled indices of an epoch to the ranks, one after another and equally many to each;
// the tail wraps around. A rank with one batch fewer would leave the others waiting in all_reduce
// for ever. The indices are those of Python's torch.utils.data.distributed.DistributedSampler with
// the same seed and epoch, with one difference: drop_last with fewer samples than ranks leaves
// nothing to read, which is an empty list there and a UsageError here.
//
// Threads: const methods may be called concurrently.
class DistributedSampler {
 public:
  // Throws UsageError if an option is out of range.
  explicit DistributedSampler(SamplerOptions options);

  // Returns what this rank reads in `epoch`, in order. It is a function of the options and the
  // arguments alone, so a resumed run sees the same data.
  //
  // `first`, in [0, size()], leaves out what was read before a run stopped: after k batches of b
  // samples, indices(epoch, k * b) returns the rest. The call takes no longer than
  // torch::randperm(num_samples). In addition to the result it uses 4 bytes per sample of the
  // dataset, or 8 bytes from 200 million samples on.
  //
  // Throws UsageError if `epoch` is negative, if seed + epoch does not fit into 64 bits, or if
  // `first` is out of range.
  std::vector<int64_t> indices(int64_t epoch, int64_t first = 0) const;

  // How many samples this rank reads in an epoch. It is the same on every rank.
  int64_t size() const;

 private:
  SamplerOptions options_;
};

}  // namespace lockstep

#include "shm/tactics.h"

#include <algorithm>

#include "shm/arena.h"

namespace lockstep::shm {
namespace {

constexpr size_t kKiB = 1024;
constexpr int kManyRanks = 16;
static_assert(kChunkBytes / 2 / kManyRanks * kNumChunkSlots <= kSumBytes);

}  // namespace

Tactics Tactics::for_ranks(int num_ranks, int num_cores) {
  if (num_ranks <= num_cores) {
    const bool many = num_ranks >= kManyRanks;
    const size_t a_line_each = static_cast<size_t>(num_ranks) * kLineBytes;
    return {.has_own_cores = true,
            .flat_bytes = kKiB,
            .slice_bytes = 1024 * kKiB,
            .small_bytes = 256 * kKiB,
            .chunk_bytes = many ? std::max(kChunkBytes / 2, a_line_each) : kChunkBytes,
            .fetches_sums = many,
            .blocks_per_rank = 8,
            .max_block_bytes = 64 * kKiB};
  }
  // Two ranks have little to wait for in the pipeline; more pay for each synchronisation in it.
  return {.alone_bytes = 64 * kKiB,
          .small_bytes = num_ranks > 2 ? kSlotBytes : 256 * kKiB,
          .chunk_bytes = kChunkBytes,
          .blocks_per_rank = 2,
          .max_block_bytes = 256 * kKiB};
}

}  // namespace lockstep::shm

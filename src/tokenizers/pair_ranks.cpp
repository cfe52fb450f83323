#include "tokenizers/pair_ranks.h"

#include <bit>

namespace lockstep::tokenizers {

PairRanks::PairRanks(size_t num_merges)
    : entries_(std::bit_ceil(num_merges * 2 + 2), kFree), mask_(entries_.size() - 1) {
  merged_.reserve(num_merges);
}

bool PairRanks::add(int32_t left, int32_t right, int32_t merged) {
  if (rank(left, right) != kNone) {
    return false;
  }
  const uint64_t key = key_of(left, right);
  size_t at = slot(key);
  while (entries_[at] != kFree) {
    at = (at + 1) & mask_;
  }
  entries_[at] = key << kRankBits | merged_.size();
  merged_.push_back(merged);
  return true;
}

}  // namespace lockstep::tokenizers

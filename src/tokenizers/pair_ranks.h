#pragma once

// Which two symbols become one, and how early: the merges of a byte-pair vocabulary.

#include <cstdint>
#include <vector>

#include "tokenizers/vocabulary.h"

namespace lockstep::tokenizers {

class PairRanks {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit PairRanks(size_t num_merges);

  // The next merge; false if the pair has a rank already. At most as many as announced.
  bool add(int32_t left, int32_t right, int32_t merged);

  // 0 is merged first; kNone: never.
  uint32_t rank(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t at = slot(key);; at = (at + 1) & mask_) {
      if (entries_[at] >> kRankBits == key) {
        return static_cast<uint32_t>(entries_[at]) & kRankMask;
      }
      if (entries_[at] == kFree) {
        return kNone;
      }
    }
  }
  int32_t merged(uint32_t rank) const { return merged_[rank]; }

 private:
  // A pair and its rank in one number, so that the table of GPT-2 has a megabyte.
  static constexpr int kRankBits = 21;
  static constexpr uint32_t kRankMask = (1u << kRankBits) - 1;
  static constexpr uint64_t kFree = UINT64_MAX;
  static_assert(kMaxTokens <= int64_t{1} << kRankBits);

  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << kRankBits | static_cast<uint32_t>(right);
  }
  size_t slot(uint64_t key) const { return (key * 0x9E3779B97F4A7C15u >> 32) & mask_; }

  std::vector<uint64_t> entries_;
  size_t mask_ = 0;
  std::vector<int32_t> merged_;
};

}  // namespace lockstep::tokenizers

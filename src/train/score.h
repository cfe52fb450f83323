#pragma once

// How well a classifier did, over all ranks.

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/group.h>

namespace lockstep {

struct Score {
  double loss_sum = 0;
  int64_t num_seen = 0;
  int64_t num_correct = 0;

  double loss() const { return loss_sum / static_cast<double>(num_seen); }
  double accuracy() const {
    return static_cast<double>(num_correct) / static_cast<double>(num_seen);
  }

  // One batch: `loss` is its mean, logits [batch, classes], target int64 [batch].
  void add(const at::Tensor& loss, const at::Tensor& logits_BV, const at::Tensor& target_B);
};

// Collective: the sum of all ranks' scores, the same on every rank.
Score sum_over_ranks(const Score& score, Group& group);

}  // namespace lockstep

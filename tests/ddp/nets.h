#pragma once

// Small models and data that the tests of ddp share.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>

#include "support/fleet.h"
#include "support/same_bits.h"

namespace lockstep {

using testing_support::same_on_all_ranks;

constexpr int64_t kRowsPerRank = 3;

// Three layers, of which the last is used only if asked for, and a buffer. In double, so that sums
// over ranks can be compared with those over a batch.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width) {
    first = register_module("first", torch::nn::Linear(4, width));
    second = register_module("second", torch::nn::Linear(width, 2));
    spare = register_module("spare", torch::nn::Linear(4, 2));
    scale = register_buffer("scale", torch::ones({1}));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x, bool use_spare = true) {
    auto y = second(torch::relu(first(x))) * scale;
    return use_spare ? y + spare(x) : y;
  }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  torch::nn::Linear spare{nullptr};
  torch::Tensor scale;
};
TORCH_MODULE(Net);

constexpr int64_t kSmallWidth = 16;
constexpr int64_t kLargeWidth = 70'000;  // gradients that are buckets of their own

inline Net make_net(uint64_t seed = 1, int64_t width = kSmallWidth) {
  torch::manual_seed(seed);
  return Net(width);
}

inline torch::Tensor whole_batch(int num_parts, int step = 0) {
  const int64_t count = num_parts * kRowsPerRank * 4;
  return (torch::arange(count, torch::kDouble) + 100 * step).view({-1, 4}).sin();
}

inline torch::Tensor rows_of(const torch::Tensor& batch, int part) {
  return batch.narrow(0, part * kRowsPerRank, kRowsPerRank);
}

inline torch::Tensor loss_of(const torch::Tensor& output) {
  return output.pow(2).mean();
}

template <typename Model>
void expect_equal_on_all_ranks(Group& group, Model& model) {
  for (const auto& item : model->named_parameters()) {
    EXPECT_TRUE(same_on_all_ranks(group, item.value())) << item.key();
  }
}

template <typename A, typename B>
void expect_close(A& a, B& b, double relative = 1e-9) {
  const auto left = a->named_parameters();
  const auto right = b->named_parameters();
  ASSERT_EQ(left.size(), right.size());
  for (const auto& item : left) {
    EXPECT_TRUE(item.value().allclose(right[item.key()], relative, 1e-12)) << item.key();
  }
}

template <typename A, typename B>
void expect_same_bits(A& a, B& b) {
  const auto right = b->named_parameters();
  for (const auto& item : a->named_parameters()) {
    EXPECT_TRUE(item.value().equal(right[item.key()])) << item.key();
  }
}

}  // namespace lockstep

#include "train/generate.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

TEST(Generating, GreedyTakesTheLikeliestAndDiceFollowTheShares) {
  const at::Tensor logits = at::tensor({0.0f, 2.0f, 1.0f, -1.0f});
  EXPECT_EQ(choose_token(logits, {}, 0.99), 1);
  EXPECT_EQ(choose_token(logits, {.temperature = 1}, 0.0), 1);
  EXPECT_EQ(choose_token(logits, {.temperature = 1}, 0.999), 3);
  EXPECT_EQ(choose_token(logits, {.temperature = 1, .top_k = 2}, 0.999), 2);
  EXPECT_EQ(choose_token(logits, {.temperature = 1, .top_p = 0.5}, 0.999), 1);
}

TEST(Generating, TheModelSeesTheLastTokensItHasPlaceFor) {
  int64_t longest = 0;
  const auto next_is_one_more = [&](const at::Tensor& ids_BT) {
    longest = std::max(longest, ids_BT.size(1));
    return at::one_hot((ids_BT + 1).remainder(10), 10).to(at::kFloat);
  };
  EXPECT_EQ(generate({7}, next_is_one_more, {.num_tokens = 4, .max_positions = 3}),
            (std::vector<int64_t>{7, 8, 9, 0, 1}));
  EXPECT_EQ(longest, 3);
  EXPECT_THROW(generate({}, next_is_one_more, {}), UsageError);
  EXPECT_THROW(generate({1}, next_is_one_more, {.top_p = 0}), UsageError);
}

}  // namespace
}  // namespace lockstep

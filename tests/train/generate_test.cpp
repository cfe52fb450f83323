#include "train/generate.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

TEST(Generating, GreedyTakesTheLikeliestAndDiceFollowTheShares) {
  const at::Tensor logits = at::tensor({0.0f, 2.0f, 1.0f, -1.0f});
  EXPECT_EQ(train::choose_token(logits, {}, 0.99), 1);
  EXPECT_EQ(train::choose_token(logits, {.temperature = 1}, 0.0), 1);
  EXPECT_EQ(train::choose_token(logits, {.temperature = 1}, 0.999), 3);
  EXPECT_EQ(train::choose_token(logits, {.temperature = 1, .top_k = 2}, 0.999), 2);
  EXPECT_EQ(train::choose_token(logits, {.temperature = 1, .top_p = 0.5}, 0.999), 1);
}

// What transformers 5.22 keeps: TopKLogitsWarper first, then TopPLogitsWarper of a new softmax.
TEST(Generating, TopPIsAShareOfWhatTopKLeft) {
  const at::Tensor shares = at::tensor({0.4, 0.3, 0.2, 0.1}, at::kDouble).log();
  const auto last_kept = [&](int64_t top_k, double top_p) {
    return train::choose_token(shares, {.temperature = 1, .top_k = top_k, .top_p = top_p}, 0.9999);
  };
  EXPECT_EQ(last_kept(2, 0.5), 0) << "0.4 is more than half of 0.7";
  EXPECT_EQ(last_kept(2, 0.6), 1);
  EXPECT_EQ(last_kept(3, 0.75), 1) << "0.7 is more than three quarters of 0.9";
  EXPECT_EQ(last_kept(0, 0.75), 2);
  EXPECT_EQ(last_kept(4, 0.75), 2);
  const at::Tensor ties = at::tensor({1.0f, 3.0f, 3.0f, 3.0f});
  const train::GenerateOptions two{.temperature = 1, .top_k = 2};
  std::set<int64_t> chosen;
  for (const double dice : {0.1, 0.5, 0.9}) {
    chosen.insert(train::choose_token(ties, two, dice));
  }
  EXPECT_EQ(chosen, (std::set<int64_t>{1, 2, 3})) << "the third is as likely as the second";
}

TEST(Generating, TheModelSeesTheLastTokensItHasPlaceFor) {
  int64_t longest = 0;
  const auto next_is_one_more = [&](const at::Tensor& ids_BT) {
    longest = std::max(longest, ids_BT.size(1));
    return at::one_hot((ids_BT + 1).remainder(10), 10).to(at::kFloat);
  };
  EXPECT_EQ(train::generate({7}, next_is_one_more, {.num_tokens = 4, .max_positions = 3}),
            (std::vector<int64_t>{7, 8, 9, 0, 1}));
  EXPECT_EQ(longest, 3);
  EXPECT_THROW(train::generate({}, next_is_one_more, {}), UsageError);
  EXPECT_THROW(train::generate({1}, next_is_one_more, {.top_p = 0}), UsageError);
  EXPECT_THROW(train::generate({1}, next_is_one_more, {.num_tokens = -5}), UsageError);
}

}  // namespace
}  // namespace lockstep

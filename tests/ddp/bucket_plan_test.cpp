#include "ddp/bucket_plan.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Buckets = std::vector<std::vector<size_t>>;
constexpr auto kFloat = c10::ScalarType::Float;
constexpr auto kDouble = c10::ScalarType::Double;

TEST(BucketPlan, FollowsTheOrderAndCutsAtTheLimit) {
  const std::vector<ddp::GradientSize> sizes = {{40, kFloat}, {20, kFloat}, {24, kFloat}};
  EXPECT_EQ(ddp::plan_buckets(sizes, {2, 1, 0}, {.bucket_bytes = 44, .first_bucket_bytes = 44}),
            (Buckets{{2, 1}, {0}}));
  EXPECT_EQ(ddp::plan_buckets(sizes, {0, 2, 1}, {.bucket_bytes = 44, .first_bucket_bytes = 44}),
            (Buckets{{0}, {2, 1}}));
}

TEST(BucketPlan, TheFirstBucketIsSmaller) {
  const std::vector<ddp::GradientSize> sizes(4, {10, kFloat});
  EXPECT_EQ(ddp::plan_buckets(sizes, {3, 2, 1, 0}, {.bucket_bytes = 30, .first_bucket_bytes = 10}),
            (Buckets{{3}, {2, 1, 0}}));
  EXPECT_EQ(
      ddp::plan_buckets(sizes, {3, 2, 1, 0}, {.bucket_bytes = 10, .first_bucket_bytes = 1000}),
      (Buckets{{3}, {2}, {1}, {0}}));
}

TEST(BucketPlan, AGradientLargerThanABucketHasOneOfItsOwn) {
  const std::vector<ddp::GradientSize> sizes = {{400, kFloat}, {4, kFloat}};
  EXPECT_EQ(ddp::plan_buckets(sizes, {1, 0}, {.bucket_bytes = 8, .first_bucket_bytes = 8}),
            (Buckets{{1}, {0}}));
}

TEST(BucketPlan, TypesAreNotMixedAndBucketsComeInTheOrderInWhichTheyAreFull) {
  const std::vector<ddp::GradientSize> sizes = {
      {8, kFloat}, {8, kDouble}, {8, kFloat}, {8, kDouble}, {8, kFloat}};
  EXPECT_EQ(
      ddp::plan_buckets(sizes, {4, 3, 2, 1, 0}, {.bucket_bytes = 100, .first_bucket_bytes = 100}),
      (Buckets{{3, 1}, {4, 2, 0}}));
}

TEST(BucketPlan, NothingMakesNoBucket) {
  EXPECT_TRUE(ddp::plan_buckets({}, {}, {}).empty());
}

}  // namespace
}  // namespace lockstep

#include "ddp/bucket_plan.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

std::vector<size_t> parameters_of(const Bucket& bucket) {
  std::vector<size_t> list;
  for (const BucketSlot& slot : bucket.slots) {
    list.push_back(slot.parameter);
  }
  return list;
}

TEST(BucketPlan, LastParametersFirstCutAtTheLimit) {
  const std::vector<at::Tensor> parameters = {at::zeros({10}), at::zeros({5}), at::zeros({2, 3})};
  const auto buckets = plan_buckets(parameters, 44);  // 6 + 5 floats fit, 10 more do not
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(parameters_of(buckets[0]), (std::vector<size_t>{2, 1}));
  EXPECT_EQ(parameters_of(buckets[1]), (std::vector<size_t>{0}));
  EXPECT_EQ(buckets[0].flat.numel(), 11);
  EXPECT_EQ(buckets[0].slots[1].offset, 6);
}

TEST(BucketPlan, AParameterLargerThanABucketHasOneOfItsOwn) {
  const auto buckets = plan_buckets({at::zeros({100}), at::zeros({1})}, 8);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[1].flat.numel(), 100);
}

TEST(BucketPlan, TypesAreNotMixed) {
  const auto buckets = plan_buckets(
      {at::zeros({2}), at::zeros({2}, at::kDouble), at::zeros({2}, at::kDouble)}, 1000);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].flat.scalar_type(), at::kDouble);
  EXPECT_EQ(buckets[0].flat.numel(), 4);
  EXPECT_EQ(buckets[1].flat.scalar_type(), at::kFloat);
}

TEST(BucketPlan, NothingMakesNoBucket) {
  EXPECT_TRUE(plan_buckets({}, 100).empty());
}

}  // namespace
}  // namespace lockstep

#include <vector>

#include <ATen/ATen.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/data/batches.h>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Row i of the input is {10 i, 10 i + 1}, its target i.
TensorDataset numbers(int64_t rows) {
  const at::Tensor target = at::arange(rows, at::kLong);
  return {at::stack({target * 10, target * 10 + 1}, 1).to(at::kFloat), target};
}

TEST(Batches, CutTheIndicesInOrderAndTheLastMayBeSmaller) {
  std::vector<int64_t> targets;
  std::vector<int64_t> sizes;
  for (const Batch batch : batches(numbers(6), {.indices = {5, 0, 3, 3, 1}, .batch_size = 2})) {
    sizes.push_back(batch.target.size(0));
    for (int64_t i = 0; i < batch.target.size(0); ++i) {
      const auto target = batch.target[i].item<int64_t>();
      targets.push_back(target);
      EXPECT_EQ(batch.input[i][0].item<float>(), 10.0f * static_cast<float>(target));
    }
  }
  EXPECT_THAT(targets, ElementsAre(5, 0, 3, 3, 1));
  EXPECT_THAT(sizes, ElementsAre(2, 2, 1));
}

TEST(Batches, OfNoIndicesAreNone) {
  const Batches none = batches(numbers(3), {.indices = {}, .batch_size = 4});
  EXPECT_EQ(none.size(), 0);
  EXPECT_TRUE(none.begin() == none.end());
}

TEST(Batches, MayBeLargerThanTheDataset) {
  const Batches one = batches(numbers(3), {.indices = {0, 1, 2}, .batch_size = 100});
  ASSERT_EQ(one.size(), 1);
  EXPECT_EQ(one.at(0).input.size(0), 3);
}

TEST(Batches, RefuseWhatIsNotThere) {
  const auto refuses = [](TensorDataset data, BatchOptions options, const char* reason) {
    EXPECT_THAT([&] { batches(data, options); }, ThrowsMessage<UsageError>(HasSubstr(reason)));
  };
  refuses(numbers(3), {.indices = {0}, .batch_size = 0}, "batch_size is 0");
  refuses(numbers(3), {.indices = {3}}, "index 3 is not in [0, 3)");
  refuses(numbers(3), {.indices = {-1}}, "index -1 is not in [0, 3)");
  refuses({numbers(3).input, numbers(4).target}, {.indices = {0}}, "the same number of rows");
  refuses({}, {.indices = {0}}, "must be tensors");
  EXPECT_THROW(batches(numbers(3), {.indices = {0}}).at(1), UsageError);
}

}  // namespace
}  // namespace lockstep

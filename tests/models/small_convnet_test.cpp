#include "models/small_convnet.h"

#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <lockstep/base/error.h>

#include "models/parameter_hash.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

bool same_parameters(const models::SmallConvnet& a, const models::SmallConvnet& b) {
  const auto left = a->parameters();
  const auto right = b->parameters();
  for (size_t i = 0; i < left.size(); ++i) {
    if (!left[i].equal(right[i])) {
      return false;
    }
  }
  return left.size() == right.size();
}

TEST(SmallConvnet, GivesOneLogitPerClass) {
  models::SmallConvnet model(models::SmallConvnetOptions{.num_classes = 5});
  EXPECT_EQ(model(at::rand({7, 3, 32, 32})).sizes(), (at::IntArrayRef{7, 5}));
  EXPECT_EQ(model(at::rand({0, 3, 32, 32})).sizes(), (at::IntArrayRef{0, 5}));
}

TEST(SmallConvnet, IsSmallAndHasNoBuffers) {
  const models::SmallConvnet model(models::SmallConvnetOptions{});
  EXPECT_GT(models::num_parameters(*model), 10'000);
  EXPECT_LT(models::num_parameters(*model), 100'000);
  EXPECT_TRUE(model->buffers().empty()) << "a buffer could differ between ranks";
}

TEST(SmallConvnet, TheFirstWeightsDependOnTheSeedOnly) {
  torch::manual_seed(1);
  const models::SmallConvnet first(models::SmallConvnetOptions{.seed = 7});
  torch::manual_seed(2);
  const models::SmallConvnet same(models::SmallConvnetOptions{.seed = 7});
  const models::SmallConvnet other(models::SmallConvnetOptions{.seed = 8});
  EXPECT_TRUE(same_parameters(first, same));
  EXPECT_FALSE(same_parameters(first, other));
}

TEST(SmallConvnet, EveryParameterGetsAGradient) {
  models::SmallConvnet model(models::SmallConvnetOptions{});
  model(at::rand({8, 3, 32, 32})).pow(2).sum().backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_GT(item.value().grad().abs().sum().item<float>(), 0.0f) << item.key();
  }
}

TEST(SmallConvnet, RefusesOptionsOutOfRange) {
  const auto refuses = [](models::SmallConvnetOptions options, const char* reason) {
    EXPECT_THAT([&] { models::SmallConvnet model(options); },
                ThrowsMessage<UsageError>(HasSubstr(reason)));
  };
  refuses({.picture_size = 30}, "picture_size is 30");
  refuses({.picture_size = 0}, "picture_size is 0");
  refuses({.channels = 0}, "channels 0");
  refuses({.num_classes = 0}, "num_classes 0");
}

}  // namespace
}  // namespace lockstep

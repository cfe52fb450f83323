#include "data/cat_pictures.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

TEST(CatPictures, HaveTheShapeTheTypeAndTheRangeOfPictures) {
  const TensorDataset pictures = data::draw_cat_pictures({.num_pictures = 7, .seed = 3});
  EXPECT_EQ(pictures.input.sizes(), (at::IntArrayRef{7, 3, 32, 32}));
  EXPECT_EQ(pictures.input.scalar_type(), at::kFloat);
  EXPECT_GE(pictures.input.min().item<float>(), 0.0f);
  EXPECT_LE(pictures.input.max().item<float>(), 1.0f);
  EXPECT_EQ(pictures.target.sum().item<int64_t>(), 4) << "every other one is a cat";
}

TEST(CatPictures, DependOnSeedAndNumberOnly) {
  const TensorDataset few = data::draw_cat_pictures({.num_pictures = 5, .seed = 3});
  const TensorDataset many = data::draw_cat_pictures({.num_pictures = 20, .seed = 3});
  EXPECT_TRUE(few.input.equal(many.input.narrow(0, 0, 5)));
  EXPECT_FALSE(few.input.equal(data::draw_cat_pictures({.num_pictures = 5, .seed = 4}).input));
  EXPECT_FALSE(few.input[0].equal(few.input[2]));
}

TEST(CatPictures, CatsAndNotCatsAreEquallyLight) {
  // Same parts, same colours: neither the mean nor the spread of all pixels may tell them apart.
  const TensorDataset pictures = data::draw_cat_pictures({.num_pictures = 2000, .seed = 5});
  const at::Tensor means = pictures.input.mean({1, 2, 3});
  const at::Tensor cats = means.index({pictures.target.eq(1)});
  const at::Tensor others = means.index({pictures.target.eq(0)});
  const double spread = means.std().item<double>() * std::sqrt(2.0 / 1000);  // of the difference
  EXPECT_LT(std::abs((cats.mean() - others.mean()).item<double>()), 4 * spread);
  EXPECT_NEAR(cats.std().item<double>(), others.std().item<double>(), 0.02);
}

TEST(CatPictures, RefuseToDrawNone) {
  EXPECT_THROW(data::draw_cat_pictures({.num_pictures = 0}), UsageError);
}

}  // namespace
}  // namespace lockstep

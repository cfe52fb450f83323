#include "data/picture_jitter.h"

#include <numeric>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

std::vector<uint64_t> seeds(int64_t num, uint64_t first) {
  std::vector<uint64_t> all(static_cast<size_t>(num));
  std::iota(all.begin(), all.end(), first);
  return all;
}

TEST(PictureJitter, DependsOnThePicturesOwnSeedOnly) {
  const at::Tensor pictures = at::rand({20, 3, 8, 8});
  const at::Tensor jittered = data::jitter_pictures(pictures, seeds(20, 1));
  EXPECT_TRUE(jittered.equal(data::jitter_pictures(pictures, seeds(20, 1))));
  EXPECT_TRUE(
      data::jitter_pictures(pictures.narrow(0, 5, 5), seeds(5, 6)).equal(jittered.narrow(0, 5, 5)));
  EXPECT_FALSE(jittered.equal(data::jitter_pictures(pictures, seeds(20, 100))));
}

TEST(PictureJitter, WithoutShiftsPicturesAreThemselvesOrMirrored) {
  const at::Tensor pictures = at::rand({40, 3, 8, 6});
  const at::Tensor jittered = data::jitter_pictures(pictures, seeds(40, 1), 0);
  int num_mirrored = 0;
  for (int64_t i = 0; i < pictures.size(0); ++i) {
    const bool mirrored = jittered[i].equal(pictures[i].flip(2));
    EXPECT_TRUE(mirrored || jittered[i].equal(pictures[i])) << "picture " << i;
    num_mirrored += mirrored ? 1 : 0;
  }
  EXPECT_GT(num_mirrored, 5);
  EXPECT_LT(num_mirrored, 35);
}

TEST(PictureJitter, MovesTheMiddleByAtMostTheShift) {
  at::Tensor pictures = at::zeros({60, 1, 9, 9});
  pictures.select(2, 4).select(2, 4).fill_(1);  // one dot in the middle, where mirroring keeps it
  const at::Tensor jittered = data::jitter_pictures(pictures, seeds(60, 7), 1);
  const at::Tensor middle = jittered.narrow(2, 3, 3).narrow(3, 3, 3);
  EXPECT_EQ(middle.sum().item<float>(), 60.0f);
  EXPECT_EQ(middle.sum(at::IntArrayRef({0, 1})).gt(0).sum().item<int64_t>(), 9)
      << "all nine places are used";
}

TEST(PictureJitter, RefusesOtherTensorsAndNegativeShifts) {
  EXPECT_THROW(data::jitter_pictures(at::rand({3, 8, 8}), seeds(3, 1)), UsageError);
  EXPECT_THROW(data::jitter_pictures(at::rand({2, 3, 8, 8}), seeds(1, 1)), UsageError);
  EXPECT_THROW(data::jitter_pictures(at::rand({1, 3, 8, 8}), seeds(1, 1), -1), UsageError);
}

}  // namespace
}  // namespace lockstep

#include <algorithm>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/data/distributed_sampler.h>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<int64_t> read_by(SamplerOptions options, int rank, int64_t epoch = 0) {
  options.rank = rank;
  return DistributedSampler(options).indices(epoch);
}

TEST(DistributedSampler, ShufflesAsPythonDoes) {
  // What Python's DistributedSampler of PyTorch 2.11 gives, here and below.
  EXPECT_THAT(read_by({.num_samples = 10}, 0), ElementsAre(4, 1, 7, 5, 3, 9, 0, 8, 6, 2));
  const std::vector<int64_t> next = read_by({.num_samples = 10}, 0, 1);
  EXPECT_THAT(next, ElementsAre(5, 6, 1, 2, 0, 8, 9, 3, 7, 4));
  EXPECT_EQ(read_by({.num_samples = 10, .seed = 1}, 0), next) << "seed and epoch are added up";
}

TEST(DistributedSampler, DealsRoundRobinAndWrapsAround) {
  const SamplerOptions options{.num_samples = 10, .num_ranks = 4};  // 12 places for 10 samples
  EXPECT_THAT(read_by(options, 0), ElementsAre(4, 3, 6));
  EXPECT_THAT(read_by(options, 1), ElementsAre(1, 9, 2));
  EXPECT_THAT(read_by(options, 2), ElementsAre(7, 0, 4));
  EXPECT_THAT(read_by(options, 3), ElementsAre(5, 8, 1));
}

TEST(DistributedSampler, WrapsAroundMoreThanOnceWhenRanksOutnumberSamples) {
  const SamplerOptions options{.num_samples = 2, .num_ranks = 5, .shuffle = false};
  std::vector<int64_t> all;
  for (int rank = 0; rank < 5; ++rank) {
    const auto mine = read_by(options, rank);
    all.insert(all.end(), mine.begin(), mine.end());
  }
  EXPECT_THAT(all, ElementsAre(0, 1, 0, 1, 0));
}

TEST(DistributedSampler, DropLastLeavesOutTheTail) {
  const SamplerOptions options{.num_samples = 10, .num_ranks = 4, .drop_last = true};
  EXPECT_THAT(read_by(options, 0), ElementsAre(4, 3));
  EXPECT_THAT(read_by(options, 3), ElementsAre(5, 8));
  const SamplerOptions divisible{.num_samples = 8, .num_ranks = 4, .drop_last = true};
  EXPECT_EQ(DistributedSampler(divisible).size(), 2);
}

TEST(DistributedSampler, EverySampleIsReadOnceWhenRanksDivideThem) {
  for (const int ranks : {1, 2, 3, 4, 6, 12}) {
    for (const bool drop_last : {false, true}) {
      std::vector<int64_t> all;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto mine = read_by(
            {.num_samples = 12, .num_ranks = ranks, .drop_last = drop_last, .seed = 5}, rank, 3);
        all.insert(all.end(), mine.begin(), mine.end());
      }
      std::sort(all.begin(), all.end());
      EXPECT_THAT(all, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)) << ranks << " ranks";
    }
  }
}

TEST(DistributedSampler, EveryRankReadsEquallyMany) {
  for (const int64_t samples : {1, 2, 7, 8, 1001}) {
    for (const int ranks : {1, 2, 3, 7}) {
      const SamplerOptions options{.num_samples = samples, .num_ranks = ranks};
      const int64_t size = DistributedSampler(options).size();
      EXPECT_EQ(size, (samples + ranks - 1) / ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(static_cast<int64_t>(read_by(options, rank).size()), size);
      }
    }
  }
}

TEST(DistributedSampler, WithoutShuffleEveryEpochHasTheOrderOfTheDataset) {
  const SamplerOptions options{.num_samples = 5, .num_ranks = 2, .shuffle = false};
  EXPECT_THAT(read_by(options, 0, 9), ElementsAre(0, 2, 4));
  EXPECT_THAT(read_by(options, 1, 9), ElementsAre(1, 3, 0));
}

TEST(DistributedSampler, RefusesOptionsOutOfRange) {
  const auto refuses = [](SamplerOptions options, const char* reason) {
    EXPECT_THAT([&] { DistributedSampler sampler(options); },
                ThrowsMessage<UsageError>(HasSubstr(reason)));
  };
  refuses({}, "num_samples is 0");
  refuses({.num_samples = 4, .num_ranks = 0}, "num_ranks is 0");
  refuses({.num_samples = 4, .num_ranks = 2, .rank = 2}, "rank 2 is not in [0, 2)");
  refuses({.num_samples = 4, .num_ranks = 2, .rank = -1}, "rank -1 is not in [0, 2)");
  refuses({.num_samples = 3, .num_ranks = 4, .drop_last = true}, "leave nothing to read");
  EXPECT_THAT([] { read_by({.num_samples = 4}, 0, -1); },
              ThrowsMessage<UsageError>(HasSubstr("epoch is -1")));
}

}  // namespace
}  // namespace lockstep

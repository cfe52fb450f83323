#include <algorithm>
#include <fstream>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/data/distributed_sampler.h>

#include "support/paths.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<int64_t> read_by(SamplerOptions options, int rank, int64_t epoch = 0) {
  options.rank = rank;
  return DistributedSampler(options).indices(epoch);
}

std::vector<int64_t> from(const std::vector<int64_t>& all, size_t first) {
  return {all.begin() + static_cast<std::ptrdiff_t>(first), all.end()};
}

// ---- against Python's, as golden/make_distributed_sampler.py wrote it

uint64_t hash_of(const std::vector<int64_t>& indices) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const int64_t index : indices) {
    hash = (hash ^ static_cast<uint64_t>(index)) * 0x100000001b3u;
  }
  return hash;
}

void expect_as_in(const nlohmann::json& golden) {
  const SamplerOptions options{.num_samples = golden.at("num_samples"),
                               .num_ranks = golden.at("num_ranks"),
                               .rank = golden.at("rank"),
                               .shuffle = golden.at("shuffle"),
                               .drop_last = golden.at("drop_last"),
                               .seed = golden.at("seed")};
  const int64_t epoch = golden.at("epoch");
  const size_t size = golden.at("size");
  if (size == 0) {
    EXPECT_THROW(DistributedSampler sampler(options), UsageError);  // the one difference
    return;
  }
  const DistributedSampler sampler(options);
  const std::vector<int64_t> indices = sampler.indices(epoch);
  ASSERT_EQ(indices.size(), size);
  ASSERT_EQ(static_cast<size_t>(sampler.size()), size);
  if (golden.contains("indices")) {
    EXPECT_EQ(indices, golden.at("indices").get<std::vector<int64_t>>());
    return;
  }
  const auto head = golden.at("head").get<std::vector<int64_t>>();
  const auto tail = golden.at("tail").get<std::vector<int64_t>>();
  EXPECT_TRUE(std::equal(head.begin(), head.end(), indices.begin()));
  EXPECT_EQ(from(indices, size - tail.size()), tail);
  EXPECT_EQ(hash_of(indices), golden.at("hash").get<uint64_t>());
}

TEST(DistributedSampler, DealsWhatPythonDeals) {
  std::ifstream file(testing_support::in_tree("tests/data/golden/distributed_sampler.json"));
  const auto goldens = nlohmann::json::parse(file);
  int num_dealt = 0;
  for (const auto& golden : goldens) {
    SCOPED_TRACE(golden.dump());
    expect_as_in(golden);
    num_dealt += golden.at("size") != 0 ? 1 : 0;
  }
  EXPECT_GE(num_dealt, 200);
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

TEST(DistributedSampler, GoesOnAtAnySample) {
  for (const bool shuffle : {false, true}) {
    for (const int64_t samples : {1, 2, 7, 130}) {
      for (const int ranks : {1, 3, 4}) {
        const DistributedSampler sampler(
            {.num_samples = samples, .num_ranks = ranks, .rank = ranks - 1, .shuffle = shuffle});
        const std::vector<int64_t> all = sampler.indices(2);
        for (int64_t first = 0; first <= sampler.size(); ++first) {
          EXPECT_EQ(sampler.indices(2, first), from(all, static_cast<size_t>(first)))
              << samples << " samples, " << ranks << " ranks, first " << first;
        }
      }
    }
  }
}

// The k-th samples of all shards, in the order of ranks and of the shards of each.
std::vector<int64_t> read_by_shards(int num_shards, int num_ranks, size_t k) {
  std::vector<int64_t> read;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int end = (rank + 1) * num_shards / num_ranks;
    for (int shard = rank * num_shards / num_ranks; shard < end; ++shard) {
      read.push_back(read_by({.num_samples = 50, .num_ranks = num_shards}, shard)[k]);
    }
  }
  return read;
}

TEST(DistributedSampler, ShardsReadTheSameOnAnyNumberOfRanks) {
  for (const size_t k : {0u, 3u, 6u}) {
    for (const int ranks : {1, 2, 4}) {
      EXPECT_EQ(read_by_shards(8, ranks, k), read_by_shards(8, 8, k)) << ranks << " ranks";
    }
  }
}

TEST(DistributedSampler, LeavesTheGlobalGeneratorAlone) {
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  read_by({.num_samples = 100}, 0);
  EXPECT_TRUE(before.equal(at::detail::getDefaultCPUGenerator().get_state()));
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
  EXPECT_THAT([] { read_by({.num_samples = 4, .seed = UINT64_MAX}, 0, 1); },
              ThrowsMessage<UsageError>(HasSubstr("does not fit into 64 bits")));
  const DistributedSampler sampler({.num_samples = 5, .num_ranks = 2});
  EXPECT_THAT([&] { sampler.indices(0, 4); },
              ThrowsMessage<UsageError>(HasSubstr("first is 4, it is not in [0, 3]")));
  EXPECT_THAT([&] { sampler.indices(0, -1); }, ThrowsMessage<UsageError>(HasSubstr("first is -1")));
}

}  // namespace
}  // namespace lockstep

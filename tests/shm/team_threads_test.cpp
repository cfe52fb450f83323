// Every operation against a scalar oracle: types, worlds, awkward sizes, and all of the ways that
// data can take (ordinary memory, bound buffers, some of each).

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "shm/thread_team.h"

namespace lockstep::shm::test {
namespace {

constexpr size_t kKiB = 1 << 10;
constexpr size_t kMiB = 1 << 20;
constexpr size_t kSmall = 128 * kKiB;      // what is moved whole
constexpr size_t kSmallPair = 256 * kKiB;  // what two ranks reduce whole; more: kSlotBytes
constexpr CaseRunner::Limits kLimits{.input_bytes = 3 * kMiB, .output_bytes = 6 * kMiB};
constexpr CaseRunner::Limits kTsanLimits{.input_bytes = 1200 * kKiB, .output_bytes = 2 * kMiB};

constexpr Sum kSums[] = {
    {DataType::Float32, Reduction::Sum},     {DataType::Float32, Reduction::Average},
    {DataType::Float32, Reduction::Min},     {DataType::Float32, Reduction::Max},
    {DataType::Float32, Reduction::Product}, {DataType::Float64, Reduction::Sum},
    {DataType::Float16, Reduction::Sum},     {DataType::Float16, Reduction::Average},
    {DataType::BFloat16, Reduction::Sum},    {DataType::BFloat16, Reduction::Average},
    {DataType::BFloat16, Reduction::Max},    {DataType::Int8, Reduction::Sum},
    {DataType::UInt8, Reduction::Max},       {DataType::Int32, Reduction::Sum},
    {DataType::Int32, Reduction::Min},       {DataType::Int32, Reduction::Product},
    {DataType::Int32, Reduction::BitAnd},    {DataType::Int32, Reduction::BitOr},
    {DataType::Int64, Reduction::Product},   {DataType::Bool, Reduction::BitAnd},
    {DataType::Bool, Reduction::BitOr},
};
constexpr DataType kMovedTypes[] = {DataType::UInt8, DataType::Float32, DataType::Float64};

// Elements: none, one, few, odd; at every border between two algorithms, and beside it.
std::vector<size_t> awkward_counts(DataType type) {
  const size_t element = element_bytes(type);
  return {0,
          1,
          3,
          1001,
          16 * kKiB + 1,
          kSmall / element - 1,
          kSmall / element,
          kSmall / element + 1,
          kSmallPair / element,
          kSmallPair / element + 1,
          kSlotBytes / element,
          kSlotBytes / element + 1,
          10 * kChunkBytes / element + 7};
}

// Beside the borders only: for what differs from another case in its arithmetic alone.
std::vector<size_t> few_counts(DataType type) {
  const size_t element = element_bytes(type);
  return {1001, kSmall / element + 1, kSlotBytes / element + 1};
}

bool is_thorough(const Sum& sum) {
  return is_long() || (sum.reduction == Reduction::Sum &&
                       (sum.type == DataType::Float32 || sum.type == DataType::BFloat16));
}

std::vector<size_t> counts_for(const Sum& sum) {
  return is_thorough(sum) ? awkward_counts(sum.type) : few_counts(sum.type);
}

struct World {
  int size = 1;
  Cores cores = Cores::TooFew;
};

class TeamOfThreads : public ::testing::TestWithParam<World> {
 protected:
  TeamOfThreads() : runner_(GetParam().size, kIsTsan ? kTsanLimits : kLimits, GetParam().cores) {}

  // The case with all ranks' data in ordinary memory, in bound buffers, and half of each; those
  // that are too large for this world are left out.
  void add(Case item) {
    item.offset = cases_.size() % 4 == 3 ? 5 : 0;  // an input that begins within a cache line
    for (const unsigned bound : {kNoneBound, kAllBound, 0b10101010U}) {
      item.bound_ranks = bound;
      if (runner_.fits(item)) {
        cases_.push_back(item);
      }
    }
  }

  void run() {
    runner_.run(cases_);
    RecordProperty("cases", static_cast<int>(cases_.size()));
  }

  int size() const { return GetParam().size; }

  CaseRunner runner_;
  std::vector<Case> cases_;
};

TEST_P(TeamOfThreads, AllReduceIsTheTreeSum) {
  for (const Sum& sum : kSums) {
    for (const size_t count : counts_for(sum)) {
      add({.kind = Kind::AllReduce, .type = sum.type, .reduction = sum.reduction, .count = count});
    }
  }
  run();
}

TEST_P(TeamOfThreads, ReduceScatterIsAPartOfTheTreeSum) {
  for (const Sum& sum : kSums) {
    std::vector<size_t> counts = counts_for(sum);
    // The borders lie at what all ranks give, not one.
    const size_t border = kSmall / element_bytes(sum.type) / static_cast<size_t>(size());
    counts.insert(counts.end(), {border - 1, border, border + 1});
    for (const size_t count : counts) {
      add({.kind = Kind::ReduceScatter,
           .type = sum.type,
           .reduction = sum.reduction,
           .count = count});
    }
  }
  run();
}

TEST_P(TeamOfThreads, BroadcastGivesTheRootsData) {
  for (int root = 0; root < size(); ++root) {
    const DataType type = kMovedTypes[root % std::size(kMovedTypes)];
    for (const size_t count : root < 3 ? awkward_counts(type) : few_counts(type)) {
      add({.kind = Kind::Broadcast, .type = type, .root = root, .count = count});
    }
  }
  run();
}

TEST_P(TeamOfThreads, AllGatherGivesEverybodysData) {
  for (const DataType type : kMovedTypes) {
    for (const size_t count : awkward_counts(type)) {
      add({.kind = Kind::AllGather, .type = type, .count = count});
    }
  }
  run();
}

TEST_P(TeamOfThreads, AllToAllGivesEachItsPart) {
  uint64_t seed = 1;
  for (const DataType type : kMovedTypes) {
    for (const size_t count : awkward_counts(type)) {
      add({.kind = Kind::AllToAll, .type = type, .splits = runner_.random_splits(count, ++seed)});
    }
  }
  // One rank gives everything, to one other; the rest give nothing.
  std::vector<std::vector<int64_t>> splits(static_cast<size_t>(size()),
                                           std::vector<int64_t>(static_cast<size_t>(size())));
  splits[0].back() = 4 * kChunkBytes + 3;
  add({.kind = Kind::AllToAll, .type = DataType::UInt8, .splits = splits});
  run();
}

TEST_P(TeamOfThreads, BarrierHoldsUntilAllHaveCome) {
  constexpr int kNumBarriers = 200;
  std::atomic<int> num_come{0};
  runner_.threads().run([&](int rank) {
    for (int i = 1; i <= kNumBarriers; ++i) {
      num_come.fetch_add(1);
      runner_.threads().team(rank).run({.kind = Kind::Barrier});
      EXPECT_GE(num_come.load(), i * size());
    }
  });
  EXPECT_EQ(num_come.load(), kNumBarriers * size());
}

constexpr World kWorlds[] = {{1, Cores::Enough}, {2, Cores::TooFew}, {2, Cores::Enough},
                             {3, Cores::TooFew}, {3, Cores::Enough}, {4, Cores::TooFew},
                             {7, Cores::TooFew}, {7, Cores::Enough}, {8, Cores::TooFew}};

INSTANTIATE_TEST_SUITE_P(Worlds, TeamOfThreads, ::testing::ValuesIn(kWorlds),
                         [](const auto& world) {
                           return fmt::format(
                               "{}{}", world.param.size,
                               world.param.cores == Cores::Enough ? "OnCoresOfTheirOwn" : "");
                         });

// So many that sums stay with the rank that made them, and are fetched from there.
TEST(TeamOfManyThreads, SumsAreFetchedFromTheirOwners) {
  CaseRunner runner(17, kIsTsan ? kTsanLimits : kLimits, Cores::Enough);
  std::vector<Case> cases;
  for (const DataType type : {DataType::Float32, DataType::BFloat16}) {
    for (const size_t count : {kSlotBytes / 4 + 1, 10 * kChunkBytes / 4 + 7}) {
      for (const Kind kind : {Kind::AllReduce, Kind::ReduceScatter}) {
        cases.push_back({.kind = kind, .type = type, .reduction = Reduction::Sum, .count = count});
        cases.back().bound_ranks = kNoneBound;
        if (!runner.fits(cases.back())) {
          cases.pop_back();
        }
      }
    }
  }
  ASSERT_GE(cases.size(), kIsTsan ? 2u : 4u);
  runner.run(cases);
}

}  // namespace
}  // namespace lockstep::shm::test

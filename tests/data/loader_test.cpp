#include <atomic>
#include <mutex>
#include <set>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/data/loader.h>

#include "support/refusal.h"

namespace lockstep {
namespace {

using test::refusal;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Row i of the input is {10 i, 10 i + 1}, its target i.
std::shared_ptr<const Dataset> numbers(int64_t rows) {
  const at::Tensor target = at::arange(rows, at::kLong);
  return make_dataset({at::stack({target * 10, target * 10 + 1}, 1).to(at::kFloat), target});
}

std::vector<int64_t> values(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

// Keeps what it was asked for; throws for one index.
class Probe : public Dataset {
 public:
  int64_t size() const override { return 1000; }
  Batch batch(std::span<const SampleKey> samples) const override {
    ++num_started;
    const at::Tensor seeds = at::empty({static_cast<int64_t>(samples.size())}, at::kLong);
    for (size_t i = 0; i < samples.size(); ++i) {
      if (samples[i].index == bad_index) {
        throw FormatError("sample {} is bad", bad_index);
      }
      seeds[static_cast<int64_t>(i)] = static_cast<int64_t>(samples[i].seed);
    }
    return {seeds, seeds};
  }

  int64_t bad_index = -1;
  mutable std::atomic<int64_t> num_started = 0;
};

std::vector<int64_t> seeds_of(LoaderOptions options, uint64_t seed, int64_t epoch) {
  Loader loader(std::make_shared<Probe>(), options);
  std::vector<int64_t> indices(50);
  std::iota(indices.begin(), indices.end(), 3);
  loader.start(indices, 4, seed, epoch);
  std::vector<int64_t> seeds;
  while (const auto batch = loader.next()) {
    for (const int64_t value : values(batch->input)) {
      seeds.push_back(value);
    }
  }
  return seeds;
}

TEST(MemoryDataset, GivesRowsInTheOrderAsked) {
  const auto data = numbers(6);
  EXPECT_EQ(data->size(), 6);
  const Batch batch = data->batch(std::vector<SampleKey>{{.index = 5}, {.index = 0}, {.index = 5}});
  EXPECT_THAT(values(batch.target), ElementsAre(5, 0, 5));
  EXPECT_TRUE(batch.input.equal(at::tensor({50.0f, 51.0f, 0.0f, 1.0f, 50.0f, 51.0f}).view({3, 2})));
  EXPECT_THAT(refusal([&] { data->batch(std::vector<SampleKey>{{.index = 6}}); }),
              HasSubstr("index 6 is not in [0, 6)"));
  EXPECT_THAT(refusal([] {
                make_dataset({at::zeros({2}), at::zeros({3})});
              }),
              HasSubstr("the same number of rows"));
}

TEST(Loader, GivesTheSameBatchesInOrderWhateverTheWorkers) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < 101; ++i) {
    indices.push_back(i * 7 % 101);
  }
  for (const int workers : {0, 1, 2, 5}) {
    for (const int prefetch : {1, 3, 200}) {
      Loader loader(numbers(101), {.num_workers = workers, .prefetch = prefetch});
      loader.start(indices, 8, 0, 0);
      std::vector<int64_t> seen;
      while (const auto batch = loader.next()) {
        ASSERT_EQ(batch->input.size(0), batch->target.size(0));
        for (const int64_t target : values(batch->target)) {
          seen.push_back(target);
        }
      }
      EXPECT_EQ(seen, indices) << workers << " workers, prefetch " << prefetch;
      EXPECT_FALSE(loader.next().has_value());
    }
  }
}

TEST(Loader, TheLastBatchMayBeSmallerAndNoIndicesAreNoBatches) {
  Loader loader(numbers(10));
  EXPECT_FALSE(loader.next().has_value()) << "before start()";
  loader.start({1, 2, 3}, 2, 0, 0);
  EXPECT_EQ(loader.next()->target.size(0), 2);
  EXPECT_EQ(loader.next()->target.size(0), 1);
  loader.start({}, 2, 0, 0);
  EXPECT_FALSE(loader.next().has_value());
  loader.start({4}, INT64_MAX, 0, 0);
  EXPECT_THAT(values(loader.next()->target), ElementsAre(4));
}

TEST(Loader, StartDropsWhatIsLeftAndDestructionInTheMiddleIsClean) {
  for (int round = 0; round < 50; ++round) {
    Loader loader(numbers(100), {.num_workers = 3, .prefetch = 4});
    loader.start(std::vector<int64_t>(90, 1), 3, 0, 0);
    loader.next();
    loader.start({2, 3, 4, 5, 6}, 2, 0, 0);
    EXPECT_THAT(values(loader.next()->target), ElementsAre(2, 3));
    Loader moved = std::move(loader);
    EXPECT_THAT(values(moved.next()->target), ElementsAre(4, 5));
    moved.start(std::vector<int64_t>(90, 7), 1, 0, 0);
  }
}

TEST(Loader, WorkersRunAheadNoFurtherThanPrefetch) {
  const auto probe = std::make_shared<Probe>();
  Loader loader(probe, {.num_workers = 4, .prefetch = 3});
  loader.start(std::vector<int64_t>(200, 1), 2, 0, 0);
  for (int64_t given = 1; loader.next(); ++given) {
    EXPECT_LE(probe->num_started, given + 3);
  }
  EXPECT_EQ(probe->num_started, 100);
}

TEST(Loader, ThrowsWhatAWorkerThrewInItsPlace) {
  for (const int workers : {0, 3}) {
    const auto probe = std::make_shared<Probe>();
    probe->bad_index = 7;
    Loader loader(probe, {.num_workers = workers});
    loader.start({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 2, 0, 0);
    EXPECT_TRUE(loader.next() && loader.next() && loader.next());
    EXPECT_THAT([&] { loader.next(); }, ThrowsMessage<FormatError>(HasSubstr("sample 7 is bad")));
    EXPECT_FALSE(loader.next().has_value());
    loader.start({1, 2}, 2, 0, 0);
    EXPECT_TRUE(loader.next().has_value());
  }
}

TEST(Loader, SeedsOfSamplesArePureFunctionsOfSeedEpochAndIndex) {
  const auto seeds = seeds_of({.num_workers = 0}, 5, 2);
  EXPECT_EQ(seeds, seeds_of({.num_workers = 3}, 5, 2));
  EXPECT_EQ(std::set(seeds.begin(), seeds.end()).size(), seeds.size());
  EXPECT_NE(seeds, seeds_of({}, 5, 3));
  EXPECT_NE(seeds, seeds_of({}, 6, 2));
}

TEST(Loader, PinnedMemoryIsIgnoredWithoutCuda) {
  Loader loader(numbers(4), {.pin_memory = true});
  loader.start({3}, 1, 0, 0);
  EXPECT_THAT(values(loader.next()->target), ElementsAre(3));
}

TEST(Loader, RefusesWhatCannotBe) {
  EXPECT_THAT(refusal([] { Loader loader(nullptr); }), HasSubstr("no dataset"));
  EXPECT_THAT(refusal([] { Loader(numbers(3), {.num_workers = -1}); }), HasSubstr("num_workers"));
  EXPECT_THAT(refusal([] { Loader(numbers(3), {.num_workers = 257}); }), HasSubstr("0 to 256"));
  EXPECT_THAT(refusal([] { Loader(numbers(3), {.prefetch = 0}); }), HasSubstr("prefetch is 0"));
  Loader loader(numbers(3));
  EXPECT_THAT(refusal([&] { loader.start({0}, 0, 0, 0); }), HasSubstr("batch_size is 0"));
  EXPECT_THAT(refusal([&] { loader.start({3}, 1, 0, 0); }), HasSubstr("index 3 is not in [0, 3)"));
  EXPECT_THAT(refusal([&] { loader.start({-1}, 1, 0, 0); }), HasSubstr("index -1 is not"));
}

}  // namespace
}  // namespace lockstep

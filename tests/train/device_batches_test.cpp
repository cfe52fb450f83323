// Batches on their way to a device, by copies that come late.
#include "train/device_batches.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/late_copies.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::make_late_copies;
using train::DeviceBatches;

constexpr int64_t kSamples = 50;

std::shared_ptr<const Dataset> three_tensors() {
  const at::Tensor input = at::arange(kSamples * 6, at::kFloat).sin().reshape({kSamples, 2, 3});
  const at::Tensor target = at::arange(kSamples, at::kLong) * 7;
  return make_dataset(
      {.input = input, .target = target, .more = {{"weight", target.to(at::kDouble)}}});
}

// The same batches in columns: not contiguous.
class Turned : public Dataset {
 public:
  int64_t size() const override { return data_->size(); }
  Batch batch(std::span<const SampleKey> samples) const override {
    Batch batch = data_->batch(samples);
    batch.input = batch.input.transpose(1, 2).contiguous().transpose(1, 2);
    return batch;
  }

 private:
  std::shared_ptr<const Dataset> data_ = three_tensors();
};

std::vector<int64_t> order(int64_t count, int64_t stride) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) {
    indices.push_back(i * stride % kSamples);
  }
  return indices;
}

DeviceBatches late_batches(std::shared_ptr<const Dataset> data, int workers = 2) {
  return DeviceBatches(Loader(std::move(data), {.num_workers = workers}),
                       make_late_copies(at::kCPU));
}

void expect_equal(const Batch& found, const Batch& expected) {
  ASSERT_EQ(found.names(), expected.names());
  expected.for_each_tensor([&](const std::string& name, const at::Tensor& tensor) {
    EXPECT_TRUE(found[name].equal(tensor)) << name;
    EXPECT_EQ(found[name].scalar_type(), tensor.scalar_type()) << name;
  });
}

// Ahead of which steps the next batch is fetched makes no difference, and no batch is overwritten
// by a later one.
TEST(DeviceBatches, AreTheLoadersBatchesWheneverTheyAreFetched) {
  const std::vector<std::shared_ptr<const Dataset>> datasets = {three_tensors(),
                                                                std::make_shared<Turned>()};
  for (const auto& data : datasets) {
    for (const int every : {0, 1, 2, 3}) {  // fetch ahead of every so many; 0: never
      DeviceBatches batches = late_batches(data);
      Loader loader(data, {.num_workers = 0});
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        const auto indices = order(33 + epoch, 7);
        batches.start(indices, 4, 1, epoch);
        loader.start(indices, 4, 1, epoch);
        std::vector<Batch> found, expected;
        while (auto batch = batches.next()) {
          found.push_back(std::move(*batch));
          expected.push_back(*loader.next());
          if (every > 0 && static_cast<int>(found.size()) % every == 0) {
            batches.fetch_ahead();
            batches.fetch_ahead();  // there is one already
          }
        }
        EXPECT_FALSE(loader.next().has_value());
        ASSERT_EQ(found.size(), 9u);
        for (size_t i = 0; i < found.size(); ++i) {
          SCOPED_TRACE(fmt::format("every {}, epoch {}, batch {}", every, epoch, i));
          expect_equal(found[i], expected[i]);
        }
      }
    }
  }
}

TEST(DeviceBatches, AnotherStartDropsWhatWasFetched) {
  DeviceBatches batches = late_batches(three_tensors());
  batches.start(order(20, 1), 4, 1, 0);
  batches.next();
  batches.fetch_ahead();
  batches.start({40, 41}, 2, 1, 0);
  EXPECT_EQ(batches.next()->target[0].item<int64_t>(), 280);
  batches.fetch_ahead();
  EXPECT_FALSE(batches.next().has_value());
  EXPECT_FALSE(batches.next().has_value());
}

// One tensor under two names is copied once.
TEST(DeviceBatches, WhatIsSharedStaysShared) {
  class Ids : public Dataset {
   public:
    int64_t size() const override { return kSamples; }
    Batch batch(std::span<const SampleKey> samples) const override {
      const at::Tensor ids = at::full({std::ssize(samples), 3}, samples[0].index, at::kLong);
      return {.input = ids, .target = ids};
    }
  };
  DeviceBatches batches = late_batches(std::make_shared<Ids>());
  batches.start(order(8, 3), 4, 1, 0);
  const Batch batch = *batches.next();
  EXPECT_TRUE(batch.input.is_same(batch.target) || batch.input.is_alias_of(batch.target));
}

// A step that is under way ends before the fault in the next one's data is told.
TEST(DeviceBatches, AFaultIsThrownWhenItsBatchIsAskedFor) {
  class Faulty : public Dataset {
   public:
    int64_t size() const override { return data_->size(); }
    Batch batch(std::span<const SampleKey> samples) const override {
      if (samples.front().index >= 8) {
        throw FormatError("sample {} is damaged", samples.front().index);
      }
      return data_->batch(samples);
    }

   private:
    std::shared_ptr<const Dataset> data_ = three_tensors();
  };
  for (const int workers : {0, 2}) {
    DeviceBatches batches = late_batches(std::make_shared<Faulty>(), workers);
    batches.start(order(20, 1), 4, 1, 0);
    batches.next();
    batches.fetch_ahead();
    EXPECT_EQ(batches.next()->target[0].item<int64_t>(), 28);
    batches.fetch_ahead();
    EXPECT_THAT([&] { batches.next(); }, ThrowsMessage<FormatError>(HasSubstr("sample 8")));
    batches.start({2}, 1, 1, 0);
    EXPECT_EQ(batches.next()->target[0].item<int64_t>(), 14);
  }
}

}  // namespace
}  // namespace lockstep

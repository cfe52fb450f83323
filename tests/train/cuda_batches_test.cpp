// Batches that come to a GPU while it is busy, and datasets of every layout.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <lockstep/data/batches.h>

#include "support/busy_gpu.h"
#include "support/gpu.h"
#include "train/device_batches.h"

namespace lockstep {
namespace {

using testing_support::gpu;
using train::DeviceBatches;

class CudaBatches : public testing::Test {
 protected:
  void SetUp() override { LOCKSTEP_NEEDS_GPU(); }
};

constexpr int64_t kSamples = 64;

at::Tensor rows(int64_t width) {
  return at::arange(kSamples * width, at::kFloat).sin().reshape({kSamples, width});
}

std::vector<int64_t> all_samples() {
  std::vector<int64_t> all(kSamples);
  for (int64_t i = 0; i < kSamples; ++i) {
    all[static_cast<size_t>(i)] = i * 5 % kSamples;
  }
  return all;
}

// The GPU reads each batch long after the host has dropped it: its memory must not have become that
// of a later one.
TEST_F(CudaBatches, AreNotOverwrittenWhileTheGpuIsBehind) {
  const at::Tensor input = rows(1 << 16);  // 1 MiB a batch
  DeviceBatches batches(make_dataset({.input = input, .target = at::arange(kSamples)}),
                        {.workers = 2, .device = gpu()});
  for (int64_t epoch = 0; epoch < 3; ++epoch) {  // from the second on, memory is there to be reused
    batches.start(all_samples(), 4, 1, epoch);
    std::vector<at::Tensor> found;
    testing_support::keep_gpu_busy(60);
    while (auto batch = batches.next()) {
      found.push_back(batch->input.sum(1));
      batch.reset();
      batches.fetch_ahead();
    }
    ASSERT_EQ(found.size(), 16u);
    const at::Tensor order = at::tensor(all_samples());
    const at::Tensor expected = input.index_select(0, order).sum(1);
    EXPECT_TRUE(at::cat(found).cpu().allclose(expected, 1e-3, 1e-2)) << "epoch " << epoch;
  }
}

// A dataset whose batches are as `make` says.
class Made : public Dataset {
 public:
  using Make = Batch (*)(const at::Tensor& rows);
  explicit Made(Make make) : make_(make) {}
  int64_t size() const override { return kSamples; }
  Batch batch(std::span<const SampleKey> samples) const override {
    std::vector<int64_t> indices;
    for (const SampleKey& sample : samples) {
      indices.push_back(sample.index);
    }
    return make_(rows_.index_select(0, at::tensor(indices)));
  }

 private:
  Make make_;
  at::Tensor rows_ = rows(12);
};

TEST_F(CudaBatches, MayHaveAnyLayoutAndBeOnTheGpuAlready) {
  const Made::Make makes[] = {
      [](const at::Tensor& rows) {
        return Batch{.input = rows.view({-1, 3, 4}).transpose(1, 2), .target = rows.select(1, 0)};
      },
      [](const at::Tensor& rows) {  // one row for all
        return Batch{.input = rows, .target = rows[0].expand_as(rows)};
      },
      [](const at::Tensor& rows) {
        return Batch{.input = rows.to(gpu()), .target = rows, .more = {{"twice", rows}}};
      }};
  for (const Made::Make make : makes) {
    for (const int workers : {0, 2}) {
      const auto data = std::make_shared<Made>(make);
      DeviceBatches batches(data, {.workers = workers, .device = gpu()});
      Loader loader(data, {.num_workers = 0});
      batches.start(all_samples(), 8, 1, 0);
      loader.start(all_samples(), 8, 1, 0);
      int num_batches = 0;
      while (const auto batch = batches.next()) {
        const Batch expected = *loader.next();
        ASSERT_EQ(batch->names(), expected.names());
        batch->for_each_tensor([&](const std::string& name, const at::Tensor& tensor) {
          EXPECT_EQ(tensor.device(), gpu()) << name;
          EXPECT_TRUE(tensor.cpu().equal(expected[name].cpu())) << name;
        });
        ++num_batches;
        batches.fetch_ahead();
      }
      EXPECT_EQ(num_batches, 8);
    }
  }
}

TEST_F(CudaBatches, ArePinnedAsTheyAreCopied) {
  const at::Tensor turned = rows(12).view({kSamples, 3, 4}).transpose(1, 2);
  const at::Tensor there = rows(2).to(gpu());
  const Batch pinned = Batch{.input = turned, .target = there}.pin_memory();
  EXPECT_TRUE(pinned.input.is_pinned());
  EXPECT_TRUE(pinned.input.is_contiguous());
  EXPECT_TRUE(pinned.input.equal(turned));
  EXPECT_TRUE(pinned.target.is_same(there));
}

TEST_F(CudaBatches, OfADatasetOnTheGpuAreGatheredThere) {
  const at::Tensor input = rows(3);
  for (const Batch& batch : batches({.input = input.to(gpu()), .target = input.select(1, 0)},
                                    {.indices = {7, 2}, .batch_size = 2})) {
    EXPECT_EQ(batch.input.device(), gpu());
    EXPECT_TRUE(batch.input.cpu().equal(at::stack({input[7], input[2]})));
    EXPECT_TRUE(batch.target.is_cpu());
  }
}

}  // namespace
}  // namespace lockstep

// Checkpoints of a state in a GPU's memory: taken while the GPU works on, and the same on whatever
// device they are loaded.

#include <cstring>

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "checkpoint/checkpoint_state.h"
#include "device/copies.h"
#include "support/busy_gpu.h"
#include "support/fleet.h"
#include "support/refusal.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using test::expect_same_bits;
using test::refusal;
using test::sample_state;
using test::TempFolder;
using ::testing::HasSubstr;
using testing_support::gpu;
using testing_support::keep_gpu_busy;
using testing_support::rank_argument;
using testing_support::run_ranks;

class CheckpointCuda : public ::testing::Test {
 protected:
  void SetUp() override { LOCKSTEP_NEEDS_GPU(); }
};

// sample_state(), but every fourth tensor stays on the CPU.
std::vector<NamedTensor> state_on_gpu(uint64_t seed) {
  auto state = sample_state(seed);
  for (size_t i = 0; i < state.size(); ++i) {
    state[i].tensor = i % 4 == 3 ? state[i].tensor : state[i].tensor.to(gpu());
  }
  const at::Tensor conv = at::empty({64, 32, 9, 11}, at::kFloat);
  conv.copy_(at::arange(conv.numel()).view(conv.sizes()).sin() + static_cast<double>(seed));
  state.push_back({"large.conv", conv.to(gpu()).contiguous(at::MemoryFormat::ChannelsLast)});
  return state;
}

std::vector<NamedTensor> on_cpu(const std::vector<NamedTensor>& state) {
  std::vector<NamedTensor> copies;
  for (const NamedTensor& named : state) {
    copies.push_back({named.name, named.tensor.cpu()});
  }
  return copies;
}

SaveResult save_now(CheckpointWriter& writer, int64_t step, const std::vector<NamedTensor>& state) {
  writer.begin({.step = step, .values = {{"counter", std::to_string(step)}}}, state);
  writer.wait();
  return writer.take_results().at(0);
}

// Loads into tensors on the devices of `like`, which get other bits first, and compares.
void expect_loads(const std::string& location, Group& group, const std::vector<NamedTensor>& like,
                  const std::vector<NamedTensor>& wanted) {
  const auto checkpoint = find_checkpoint(location, group);
  ASSERT_TRUE(checkpoint);
  std::vector<WeightTarget> targets;
  std::vector<WeightTarget> loaded;
  for (const NamedTensor& named : like) {
    at::Tensor other = at::empty_like(named.tensor, at::TensorOptions(at::kCPU));
    std::memset(other.mutable_data_ptr(), named.tensor.scalar_type() == at::kBool ? 0 : 0x5a,
                other.nbytes());
    targets.push_back({named.name, other.to(named.tensor.device())});
  }
  checkpoint->load(targets, group);
  for (const WeightTarget& target : targets) {
    loaded.push_back({target.name, target.tensor.cpu()});
  }
  expect_same_bits(loaded, wanted);
}

TEST_F(CheckpointCuda, AnyNumberOfRanksLoadsOnAnyDevice) {
  for (const int world : {1, 2, 3}) {
    for (const bool is_saved_on_gpu : {true, false}) {
      SCOPED_TRACE(::testing::Message() << world << " ranks, from the GPU: " << is_saved_on_gpu);
      const TempFolder folder;
      run_ranks(world,
                [](Group& group) {
                  ASSERT_EQ(cuda_problem(), "");
                  const bool from_gpu = rank_argument().starts_with("1");
                  const std::string location = rank_argument().substr(1);
                  CheckpointWriter writer(location, group);
                  const auto state = state_on_gpu(7);
                  const SaveResult result = save_now(writer, 7, from_gpu ? state : on_cpu(state));
                  EXPECT_TRUE(result.committed) << result.error;
                  expect_loads(location, group, state, on_cpu(state));
                  expect_loads(location, group, on_cpu(state), on_cpu(state));
                },
                {.argument = (is_saved_on_gpu ? "1" : "0") + folder.path()});
      for (const CheckpointCheck& check : verify_checkpoints(folder.path())) {
        EXPECT_EQ(check.problem, "");
      }
      run_ranks(4 - world,
                [](Group& group) {
                  ASSERT_EQ(cuda_problem(), "");
                  const auto state = state_on_gpu(7);
                  expect_loads(rank_argument(), group, state, on_cpu(state));
                },
                {.argument = folder.path()});
    }
  }
}

// A step that is queued long before the GPU comes to it: the parameters change by what is queued
// right after the capture, and small ones at once.
TEST_F(CheckpointCuda, HoldsTheStateOfItsStepThoughTheStreamGoesOn) {
  const TempFolder folder;
  run_ranks(2,
            [](Group& group) {
              ASSERT_EQ(cuda_problem(), "");
              CheckpointWriter writer(rank_argument(), group);
              const at::Tensor large = at::zeros({12'000'001}, at::TensorOptions(gpu()));
              const at::Tensor turned = at::zeros({1001, 1003}, at::TensorOptions(gpu())).t();
              const at::Tensor small = at::zeros({1001}, at::TensorOptions(gpu()));
              const std::vector<NamedTensor> state{
                  {"large", large}, {"turned", turned}, {"small", small}};
              for (int64_t step = 1; step <= 4; ++step) {
                keep_gpu_busy(20);
                for (const NamedTensor& named : state) {
                  named.tensor.fill_(static_cast<double>(step));
                }
                writer.begin({.step = step}, state);
                small.fill_(-1);  // as BatchNorm's, by the next forward
                keep_gpu_busy(20);
                writer.wait_captured();
                for (const NamedTensor& named : state) {
                  named.tensor.mul_(-3);
                }
                writer.wait();
                const auto results = writer.take_results();
                ASSERT_EQ(results.size(), 1u);
                EXPECT_TRUE(results[0].committed) << results[0].error;
                const auto checkpoint = find_checkpoint(rank_argument(), group);
                EXPECT_EQ(checkpoint->info().step, step);
                std::vector<WeightTarget> targets;
                for (const NamedTensor& named : state) {
                  targets.push_back({named.name, at::zeros_like(named.tensor, at::kCPU)});
                }
                checkpoint->load(targets, group);
                for (const WeightTarget& target : targets) {
                  EXPECT_TRUE(target.tensor.eq(static_cast<double>(step)).all().item<bool>())
                      << target.name << " of step " << step;
                }
                EXPECT_TRUE(large.eq(-3.0 * static_cast<double>(step)).all().item<bool>());
              }
            },
            {.argument = folder.path()});
}

// Once there is pinned memory, the host queues a step after a save without waiting for the GPU.
TEST_F(CheckpointCuda, TheHostDoesNotWaitForTheGpu) {
  const TempFolder folder;
  Group alone = make_single_group();
  CheckpointWriter writer(folder.path(), alone, {.keep_last = 1});
  const std::vector<NamedTensor> state{{"w", at::ones({20'000'003}, at::TensorOptions(gpu()))},
                                       {"bias", at::ones({1001}, at::TensorOptions(gpu()))}};
  const auto copies = device::make_copies(gpu());
  for (int64_t step = 1; step <= 3; ++step) {
    keep_gpu_busy(100);
    const device::MomentPtr work = copies->now();
    writer.begin({.step = step}, state);
    keep_gpu_busy(1);
    writer.wait_captured();
    const bool has_waited = copies->has_passed(work);
    state[0].tensor.mul_(2);
    writer.wait();
    EXPECT_TRUE(writer.take_results().at(0).committed);
    EXPECT_TRUE(step == 1 || !has_waited) << "step " << step;  // the first one pins
  }
}

// SGD with momentum on one tensor: the steps after a checkpoint are those without one.
struct Training {
  explicit Training(at::Device device)
      : w(at::arange(1'000'003, at::TensorOptions(device)).sin()), m(at::zeros_like(w)) {}
  void step(int64_t number) {
    m.mul_(0.9).add_(w.cos() * (1.0 / static_cast<double>(number)));
    w.add_(m, -0.01);
  }
  std::vector<NamedTensor> state() const { return {{"w", w}, {"m", m}}; }
  std::vector<WeightTarget> targets() const { return {{"w", w}, {"m", m}}; }
  at::Tensor w, m;
};

TEST_F(CheckpointCuda, AResumedRunEndsWithTheSameBits) {
  const TempFolder folder;
  Group alone = make_single_group();
  Training whole(gpu());
  {
    CheckpointWriter writer(folder.path(), alone);
    for (int64_t step = 1; step <= 40; ++step) {
      writer.wait_captured();
      whole.step(step);
      if (step % 10 == 0) {
        writer.begin({.step = step}, whole.state());
      }
    }
  }
  Training resumed(gpu());
  const auto checkpoint = find_checkpoint(folder.at("step-00000020"), alone);
  checkpoint->load(resumed.targets(), alone);
  for (int64_t step = 21; step <= 40; ++step) {
    resumed.step(step);
  }
  EXPECT_TRUE(resumed.w.equal(whole.w));
  EXPECT_TRUE(resumed.m.equal(whole.m));
}

TEST_F(CheckpointCuda, ADeadRankFailsTheSaveOfTheOthers) {
  const TempFolder folder;
  run_ranks(3,
            [](Group& group) {
              ASSERT_EQ(cuda_problem(), "");
              CheckpointWriter writer(rank_argument(), group);
              EXPECT_TRUE(save_now(writer, 1, state_on_gpu(1)).committed);
              group.barrier();
              if (group.rank() == 1) {
                testing_support::die_now();
              }
              const auto state = state_on_gpu(2);
              std::string error;
              try {
                error = save_now(writer, 2, state).error;
              } catch (const CommError& lost) {
                error = lost.what();
              }
              EXPECT_NE(error, "");
              EXPECT_EQ(at::ones({3}, at::TensorOptions(gpu())).sum().item<float>(), 3.0f);
            },
            {.argument = folder.path(), .dies = {1}});
  Group alone = make_single_group();
  EXPECT_EQ(find_checkpoint(folder.path(), alone)->info().step, 1);
}

TEST_F(CheckpointCuda, WithoutMemoryOfTheGpuASaveIsRefusedAndTheNextOneIsNot) {
  const TempFolder folder;
  Group alone = make_single_group();
  CheckpointWriter writer(folder.path(), alone);
  c10::DeviceAllocator* const memory = c10::getDeviceAllocator(at::kCUDA);
  const std::vector<NamedTensor> state{
      {"w", at::ones({16'384, 4096}, at::TensorOptions(gpu())).t()}};  // to be copied there
  memory->emptyCache();
  const auto free = static_cast<int64_t>(memory->getMemoryInfo(0).first);
  at::Tensor others = at::empty({free - (64 << 20)}, at::TensorOptions(gpu()).dtype(at::kByte));
  EXPECT_THAT(refusal([&] { writer.begin({.step = 1}, state); }),
              ::testing::AllOf(HasSubstr("checkpoint: cuda:0 has no memory for 268.44 MB: 0.0"),
                               HasSubstr(" GB are free"), HasSubstr("use fewer ranks per GPU")));
  others.reset();
  memory->emptyCache();
  EXPECT_TRUE(save_now(writer, 2, state).committed);
}

TEST_F(CheckpointCuda, WhatDoesNotFitIsRefused) {
  const TempFolder folder;
  Group alone = make_single_group();
  CheckpointWriter writer(folder.path(), alone);
  EXPECT_TRUE(save_now(writer, 1, {{"w", at::ones({70'000}, at::TensorOptions(gpu()))}}).committed);
  const auto checkpoint = find_checkpoint(folder.path(), alone);
  const std::vector<WeightTarget> half{
      {"w", at::zeros({70'000}, at::TensorOptions(gpu()).dtype(at::kHalf))}};
  EXPECT_THAT(refusal([&] { checkpoint->load(half, alone); }),
              HasSubstr("the one to be filled is Half"));
  const std::vector<NamedTensor> sparse{{"w", at::eye(3, at::TensorOptions(gpu())).to_sparse()}};
  EXPECT_THAT(refusal([&] { writer.begin({.step = 2}, sparse); }),
              HasSubstr("not a dense tensor of the CPU or a GPU"));
}

}  // namespace
}  // namespace lockstep

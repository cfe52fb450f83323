// libtorch's settings while a run computes on a device, and an operation that cannot keep them.
#include "train/device_settings.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/base/error.h>
#include <lockstep/train/trainer.h>

#include "ddp/device/device_path.h"
#include "train/points.h"

namespace lockstep {
namespace {

using ddp::DevicePathOnCpu;
using test::points;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// All that is set, to be compared.
std::vector<bool> settings() {
  const at::Context& context = at::globalContext();
  return {context.deterministicAlgorithms(),
          context.deterministicAlgorithmsWarnOnly(),
          context.deterministicCuDNN(),
          context.benchmarkCuDNN(),
          context.userEnabledMemEfficientSDP(),
          context.userEnabledCuDNNSDP(),
          context.allowTF32CuDNN(),
          context.allowTF32CuBLAS()};
}
const std::vector<bool> kOfARun = {true, false, true, false, false, false, false, false};

void set(const std::vector<bool>& all) {
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(all[0], all[1]);
  context.setDeterministicCuDNN(all[2]);
  context.setBenchmarkCuDNN(all[3]);
  context.setSDPUseMemEfficient(all[4]);
  context.setSDPUseCuDNN(all[5]);
  context.setAllowTF32CuDNN(all[6]);
  context.setAllowTF32CuBLAS(all[7]);
}

class DeviceSettingsTest : public testing::Test {
 protected:
  void TearDown() override { set(before_); }

 private:
  const std::vector<bool> before_ = settings();
};

TEST_F(DeviceSettingsTest, LastAsLongAsTheyLive) {
  const std::vector<std::vector<bool>> all = {{false, false, false, true, true, true, true, true},
                                              {true, true, false, false, true, false, false, true},
                                              {false, false, true, true, false, true, true, false}};
  for (const std::vector<bool>& before : all) {
    set(before);
    if (!ddp::takes_device_path(at::kCPU)) {
      const train::DeviceSettings of_the_cpu(at::kCPU, {.deterministic = true});
      EXPECT_EQ(settings(), before) << "none of it concerns the CPU";
    }
    const DevicePathOnCpu path;
    {
      const train::DeviceSettings outer(at::kCPU, {.deterministic = true});
      EXPECT_EQ(settings(), kOfARun);
      {
        const train::DeviceSettings inner(at::kCPU, {.precision = Precision::BFloat16});
        EXPECT_EQ(settings(), kOfARun);
      }
      EXPECT_EQ(settings(), kOfARun);
    }
    EXPECT_EQ(settings(), before);
    {
      const train::DeviceSettings float32(at::kCPU, {});
      std::vector<bool> without_tf32 = before;
      without_tf32[6] = without_tf32[7] = false;
      EXPECT_EQ(settings(), without_tf32);
    }
    EXPECT_EQ(settings(), before);
  }
}

// A task that does one thing in its forward.
class Doing : public TrainingTask {
 public:
  explicit Doing(std::function<void(Doing&)> what) : what_(std::move(what)) {}
  std::shared_ptr<torch::nn::Module> module() const override { return line_.ptr(); }
  TaskOutput forward(const Batch& batch) override {
    what_(*this);
    return classify(line_(batch.input), batch.target);
  }
  bool is_training() const { return line_->is_training(); }

 private:
  torch::nn::Linear line_{6, 3};
  std::function<void(Doing&)> what_;
};

TEST_F(DeviceSettingsTest, OfATrainerEndWithEachOfItsCalls) {
  const std::vector<bool> before = {false, false, false, true, true, false, true, false};
  set(before);
  const DevicePathOnCpu path;
  int num_forwards = 0;
  Doing task([&](Doing&) {
    EXPECT_EQ(settings(), kOfARun);
    if (++num_forwards == 20) {
      throw UsageError("the task has had enough");
    }
  });
  TrainerOptions options{.max_steps = 3, .batch_size = 8, .device = TrainDevice::Cpu};
  options.deterministic = true;
  const TrainerData data{.train = points(48, 0), .held_out = points(16, 0.5)};
  Trainer trainer(task, data, make_single_group(), options);
  EXPECT_EQ(settings(), before);
  trainer.evaluate();
  EXPECT_EQ(settings(), before);
  trainer.run();
  EXPECT_EQ(settings(), before);
  EXPECT_EQ(num_forwards, 2 + 3 + 2);
  EXPECT_THROW(while (true) trainer.evaluate(), UsageError);
  EXPECT_EQ(settings(), before) << "after an error, too";
}

// put() has none on any device.
TEST_F(DeviceSettingsTest, AnOperationWithoutADeterministicFormIsNamed) {
  const auto put = [] {
    at::zeros({4}).put_(at::tensor({0, 1}, at::kLong), at::ones({2}), /*accumulate=*/false);
  };
  const DevicePathOnCpu path;
  TrainerOptions options{.max_steps = 3, .batch_size = 8, .device = TrainDevice::Cpu};
  const TrainerData data{.train = points(48, 0), .held_out = points(16, 0.5)};
  int num_forwards = 0;
  Doing trains([&](Doing& task) {
    if (task.is_training() && ++num_forwards == 2) {
      put();
    }
  });
  Doing judges([&](Doing& task) {
    if (!task.is_training()) {
      put();
    }
  });
  const auto run = [&](Doing& task) { Trainer(task, data, make_single_group(), options).run(); };
  run(trains);
  run(judges);
  num_forwards = 0;
  options.deterministic = true;
  EXPECT_THAT([&] { run(trains); },
              ThrowsMessage<UsageError>(AllOf(
                  HasSubstr("step 1: train.deterministic = true, but put_ has no deterministic "
                            "form"),
                  HasSubstr("or set train.deterministic = false"))));
  EXPECT_THAT([&] { run(judges); },
              ThrowsMessage<UsageError>(HasSubstr("the evaluation: train.deterministic = true")));
  Doing fails([](Doing&) { at::zeros({2}).view({3}); });
  EXPECT_THAT([&] { run(fails); }, ThrowsMessage<c10::Error>(HasSubstr("is invalid for input")));
}

TEST_F(DeviceSettingsTest, ACublasThatWasUsedBeforeIsNamed) {
  const c10::Error error(
      {"", "", 0},
      "Deterministic behavior was enabled with either ..., but this operation is "
      "not deterministic because it uses CuBLAS and you have CUDA >= 10.2.");
  EXPECT_THAT(
      [&] { train::refuse_nondeterminism(error, "step 0"); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("step 0: train.deterministic = true, but cuBLAS"),
                                      HasSubstr("Set CUBLAS_WORKSPACE_CONFIG=:4096:8 where"))));
}

}  // namespace
}  // namespace lockstep

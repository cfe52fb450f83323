// The Trainer on a GPU: the losses of the CPU, the same bits on any number of ranks and after a
// resume, 16 bits, and what it waits for. Ranks share the GPU.
#include <cmath>
#include <cstdlib>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "support/device_waits.h"
#include "support/fleet.h"
#include "support/gpu.h"
#include "support/temp_folder.h"
#include "train/device_tasks.h"
#include "train/points.h"
#include "train/run_device.h"

namespace lockstep {
namespace {

using test::largest_difference;
using test::points;
using test::small_options;
using test::train_small;
using test::Trained;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::rank_argument;
using testing_support::run_ranks;
using testing_support::sync_debug_mode;
using testing_support::SyncCounter;

// cuBLAS reads it once, and the first case may not be one that asks for determinism.
[[maybe_unused]] const int is_set = ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);

constexpr const char* kModels[] = {"mlp", "convnet", "mytransformer", "bert", "resnet"};

TrainerOptions cuda_options(int64_t epochs = 3) {
  TrainerOptions options = small_options(TrainDevice::Cuda, epochs);
  options.deterministic = true;
  return options;
}

// All that makes a resume hard.
TrainerOptions hard_options(int64_t epochs = 4) {
  TrainerOptions options = cuda_options(epochs);
  options.optimizer = OptimizerKind::AdamW;
  options.batch_size = 16;
  options.accumulate = 2;
  options.shards = 4;
  options.clip_norm = 1;
  options.ema_decay = 0.9;
  return options;
}

class CudaTrainer : public testing::Test {
 protected:
  void SetUp() override { LOCKSTEP_NEEDS_GPU(); }
};

// The losses by which two runs can be compared. A small ResNet is chaotic: on the CPU, too, if its
// parameters differ by 3e-7, its losses differ by a tenth after a dozen steps, by way of ReLUs and
// the statistics of small batches. Three steps show forward, backward and update.
std::vector<double> comparable(const std::string& model, const Trained& trained) {
  const auto count = model == "resnet" ? 3 : std::ssize(trained.losses);
  return {trained.losses.begin(), trained.losses.begin() + count};
}

TEST_F(CudaTrainer, LossesAreThoseOfTheCpu) {
  for (const std::string model : kModels) {
    const Trained cpu = train_small(model, small_options(TrainDevice::Cpu));
    const Trained cuda = train_small(model, cuda_options());
    EXPECT_TRUE(cpu.device.is_cpu());
    EXPECT_EQ(cuda.device, testing_support::gpu());
    const double difference = largest_difference(comparable(model, cuda), comparable(model, cpu));
    EXPECT_LT(difference, 1e-4) << model;
    fmt::print("{:>14}: losses differ by at most {:.1e}\n", model, difference);
    EXPECT_EQ(cuda.losses.size(), 24u);
    EXPECT_NE(cuda.losses.front(), cuda.losses.back()) << model << " learns nothing";
    EXPECT_EQ(cuda.result.evaluation->num_counted, cpu.result.evaluation->num_counted) << model;
    if (model != "resnet") {
      EXPECT_NEAR(cuda.result.evaluation->loss, cpu.result.evaluation->loss, 1e-3) << model;
      EXPECT_NEAR(cuda.result.last.train_accuracy, cpu.result.last.train_accuracy, 0.13) << model;
    }
  }
}

// A model is judged as on the CPU, in batches, with running statistics and an average.
TEST_F(CudaTrainer, AnEvaluationIsThatOfTheCpu) {
  for (const std::string model : kModels) {
    const auto judge = [&](TrainDevice device) {
      const test::SmallRun run = test::make_small_run(model);
      TrainerOptions options = small_options(device);
      options.ema_decay = 0.9;
      return Trainer(*run.task, run.data, make_single_group(), options).evaluate();
    };
    const Evaluation cpu = judge(TrainDevice::Cpu), cuda = judge(TrainDevice::Cuda);
    EXPECT_NEAR(cuda.loss, cpu.loss, 1e-4) << model;
    EXPECT_EQ(cuda.num_counted, cpu.num_counted) << model;
    EXPECT_NEAR(static_cast<double>(cuda.num_correct), static_cast<double>(cpu.num_correct), 1)
        << model;
  }
}

TEST_F(CudaTrainer, EveryOptimizerGoesTheWayOfTheCpu) {
  for (const auto kind : {OptimizerKind::AdamW, OptimizerKind::Sgd, OptimizerKind::Lion}) {
    const auto options_on = [&](TrainDevice device) {
      TrainerOptions options = small_options(device);
      options.optimizer = kind;
      options.momentum = 0.9;
      options.lr = 1e-3;
      options.weight_decay = 0.1;
      options.clip_norm = 0.5;
      options.ema_decay = 0.9;
      options.accumulate = 2;
      return options;
    };
    const Trained cpu = train_small("mlp", options_on(TrainDevice::Cpu));
    const Trained cuda = train_small("mlp", options_on(TrainDevice::Cuda));
    EXPECT_LT(largest_difference(cuda.losses, cpu.losses), 1e-3) << static_cast<int>(kind);
    EXPECT_NEAR(cuda.result.last.grad_norm, cpu.result.last.grad_norm, 1e-2);
    EXPECT_NEAR(cuda.result.evaluation->loss, cpu.result.evaluation->loss, 1e-2);
  }
}

TEST_F(CudaTrainer, SixteenBitsFollowFloat32) {
  for (const std::string model : kModels) {
    const Trained whole = train_small(model, cuda_options());
    for (const auto precision : {Precision::BFloat16, Precision::Float16}) {
      TrainerOptions options = cuda_options();
      options.precision = precision;
      const Trained small = train_small(model, options);
      EXPECT_LT(largest_difference(comparable(model, small), comparable(model, whole)), 0.05)
          << model << " " << static_cast<int>(precision);
      EXPECT_NE(small.losses, whole.losses) << "autocast did nothing";
      EXPECT_LE(small.result.num_bad_steps, 3) << "while the loss scale finds its place";
    }
  }
}

TEST_F(CudaTrainer, AnOverflowInFloat16LowersTheLossScaleAndChangesNothing) {
  class Steep : public TrainingTask {
   public:
    std::shared_ptr<torch::nn::Module> module() const override { return line_.ptr(); }
    TaskOutput forward(const Batch& batch) override {
      TaskOutput output = classify(line_(batch.input), batch.target);
      output.loss = output.loss * 100;  // with the first scales, more than float16 has
      return output;
    }

   private:
    torch::nn::Linear line_{6, 3};
  };
  Steep task;
  TrainerOptions options = cuda_options(2);
  options.precision = Precision::Float16;
  options.on_bad_step = BadStepRule::Stop;
  options.lr = 1e-7;
  const TrainResult result =
      Trainer(task, {.train = points(64, 0), .held_out = {}}, make_single_group(), options).run();
  EXPECT_GT(result.num_bad_steps, 0);
  EXPECT_LT(result.num_bad_steps, result.steps);
  for (const at::Tensor& parameter : task.module()->parameters()) {
    EXPECT_TRUE(parameter.isfinite().all().item<bool>());
  }
}

TEST_F(CudaTrainer, DropoutComesFromTheSeedTheStepAndThePiece) {
  for (const std::string model : {"mlp", "mytransformer", "bert"}) {
    const Trained without = train_small(model, cuda_options());
    const Trained first = train_small(model, cuda_options(), make_single_group(), 0.3);
    at::rand({1000}, at::TensorOptions(testing_support::gpu()));  // draws from the same generator
    const Trained again = train_small(model, cuda_options(), make_single_group(), 0.3);
    EXPECT_EQ(again.state(), first.state()) << model;
    EXPECT_EQ(again.losses, first.losses) << model;
    EXPECT_NE(first.losses, without.losses) << model;
    TrainerOptions other = cuda_options();
    other.seed = 4;
    EXPECT_NE(train_small(model, other, make_single_group(), 0.3).losses, first.losses) << model;
  }
}

TEST_F(CudaTrainer, ShardsGiveTheSameBitsOnAnyNumberOfRanks) {
  for (const std::string model : {"mlp", "mytransformer", "resnet"}) {
    const std::string expected =
        train_small(model, hard_options(), make_single_group(), 0.2).state();
    for (const int ranks : {2, 4}) {
      run_ranks(ranks,
                [](Group& group) {
                  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
                  const std::string& argument = rank_argument();
                  const std::string own = argument.substr(0, argument.find('|'));
                  const Trained trained = train_small(own, hard_options(), group, 0.2);
                  EXPECT_TRUE(trained.result.same_bits());
                  EXPECT_EQ(trained.state(), argument.substr(argument.find('|') + 1));
                },
                {.argument = model + "|" + expected, .limit = std::chrono::seconds(120)});
    }
  }
}

TEST_F(CudaTrainer, AStopAnywhereAndAResumeChangeNoBit) {
  for (const std::string model : {"mlp", "mytransformer", "resnet"}) {
    for (const auto precision : {Precision::Float32, Precision::Float16}) {
      TrainerOptions options = hard_options();
      options.precision = precision;
      const Trained whole = train_small(model, options, make_single_group(), 0.2);
      for (const int64_t stop : {3, 8}) {
        const test::TempFolder folder;
        options.checkpoint_dir = folder.path();
        options.max_steps = stop;
        train_small(model, options, make_single_group(), 0.2);
        options.max_steps = 0;
        const Trained resumed = train_small(model, options, make_single_group(), 0.2);
        EXPECT_EQ(resumed.result.resumed_at, stop);
        EXPECT_EQ(resumed.state(), whole.state()) << model << ", ended after step " << stop;
        options.checkpoint_dir.clear();
      }
    }
  }
}

// libtorch's optimizers keep their state on the GPU, and their number of steps on the host.
TEST_F(CudaTrainer, OptimizersOfOnesOwnGoOnWithTheSameBits) {
  using Make = OptimizerFactory;
  const Make adam = [](torch::nn::Module& module) {
    return std::make_unique<torch::optim::Adam>(module.parameters(),
                                                torch::optim::AdamOptions(1e-2).amsgrad(true));
  };
  const Make rmsprop = [](torch::nn::Module& module) {
    return std::make_unique<torch::optim::RMSprop>(
        module.parameters(), torch::optim::RMSpropOptions(1e-3).momentum(0.9).centered(true));
  };
  for (const Make& make : {adam, rmsprop}) {
    TrainerOptions options = hard_options();
    const TrainerOptions untouched;  // an optimizer of one's own has these settings itself
    options.optimizer = untouched.optimizer;
    options.lr = untouched.lr;
    options.momentum = untouched.momentum;
    options.weight_decay = untouched.weight_decay;
    options.make_optimizer = make;
    const Trained whole = train_small("mlp", options, make_single_group(), 0.2);
    const test::TempFolder folder;
    options.checkpoint_dir = folder.path();
    options.max_steps = 5;
    train_small("mlp", options, make_single_group(), 0.2);
    options.max_steps = 0;
    const Trained resumed = train_small("mlp", options, make_single_group(), 0.2);
    EXPECT_EQ(resumed.result.resumed_at, 5);
    EXPECT_EQ(resumed.state(), whole.state());
    options.checkpoint_dir.clear();
    const std::vector<double> cuda = train_small("mlp", options).losses;
    options.device = TrainDevice::Cpu;
    EXPECT_LT(largest_difference(cuda, train_small("mlp", options).losses), 1e-3);
  }
}

// Not bit for bit: the other device adds in another order. What is saved is what is loaded.
TEST_F(CudaTrainer, ARunGoesOnOnTheOtherKindOfDeviceOnlyWithConsent) {
  for (const auto begins : {TrainDevice::Cpu, TrainDevice::Cuda}) {
    const bool is_cpu = begins == TrainDevice::Cpu;
    const auto ends = is_cpu ? TrainDevice::Cuda : TrainDevice::Cpu;
    const test::TempFolder folder;
    TrainerOptions options = hard_options();
    options.device = begins;
    const Trained whole = train_small("mlp", options);
    options.checkpoint_dir = folder.path();
    options.max_steps = 7;
    train_small("mlp", options);
    options.max_steps = 0;
    options.device = ends;
    EXPECT_THAT([&] { train_small("mlp", options); },
                ThrowsMessage<UsageError>(
                    AllOf(HasSubstr(is_cpu ? "is of a run on the CPU" : "is of a run on a GPU"),
                          HasSubstr("--allow-other-bits"))));
    if (is_cpu) {
      options.device = TrainDevice::Auto;  // stays where the run began
      options.max_steps = 8;
      EXPECT_TRUE(train_small("mlp", options).device.is_cpu());
      options.max_steps = 0;
    }
    options.device = ends;
    options.allow_other_bits = true;
    const Trained resumed = train_small("mlp", options);
    EXPECT_EQ(resumed.device.is_cpu(), !is_cpu);
    EXPECT_EQ(resumed.result.resumed_at, is_cpu ? 8 : 7);
    const std::vector<double> rest(whole.losses.end() - std::ssize(resumed.losses),
                                   whole.losses.end());
    EXPECT_LT(largest_difference(resumed.losses, rest), 1e-4);
  }
}

TEST_F(CudaTrainer, AutoTakesTheGpuAndLogsItInOneLine) {
  std::vector<std::string> lines;
  const log::Level before = log::level();
  log::set_level(log::Level::Info);
  log::set_sink([&](log::Level, std::string_view line) { lines.emplace_back(line); });
  Group group = make_single_group();
  EXPECT_EQ(train::choose_device(group, {}), testing_support::gpu());
  log::set_sink({});
  log::set_level(before);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("device: cuda:0, as train.device = \"auto\": every rank can"));
}

// Between the forward of one step and that of a later one, on the thread that queues the work.
TEST_F(CudaTrainer, AStepWaitsForTheDeviceOnce) {
  int* const mode = sync_debug_mode();
  ASSERT_NE(mode, nullptr) << "this libtorch hides whether it waits";
  for (const std::string model : kModels) {
    for (const auto precision : {Precision::Float32, Precision::BFloat16, Precision::Float16}) {
      class Watched : public TrainingTask {
       public:
        Watched(TrainingTask& task, const SyncCounter& counter) : task_(task), counter_(counter) {}
        std::shared_ptr<torch::nn::Module> module() const override { return task_.module(); }
        TaskOutput forward(const Batch& batch) override {
          if (task_.module()->is_training()) {
            syncs.push_back(counter_.num_syncs);
          }
          return task_.forward(batch);
        }
        std::vector<int> syncs;  // before each piece

       private:
        TrainingTask& task_;
        const SyncCounter& counter_;
      };
      SyncCounter counter;
      const test::SmallRun run = test::make_small_run(model, 0.1);
      Watched task(*run.task, counter);
      TrainerOptions options = small_options(TrainDevice::Cuda, 2);
      options.precision = precision;
      options.accumulate = 2;
      options.clip_norm = 1;
      options.optimizer = OptimizerKind::AdamW;
      options.log_every = 1000;
      Trainer trainer(task, {.train = run.data.train, .held_out = {}}, make_single_group(),
                      options);
      *mode = 1;
      trainer.run();
      *mode = 0;
      ASSERT_EQ(task.syncs.size(), 32u);
      // From the eleventh step's first piece to the fourteenth's: three steps within an epoch, and
      // after those in which float16's gradients overflow and labels are looked at.
      EXPECT_EQ(task.syncs[26] - task.syncs[20], 3)
          << model << " " << static_cast<int>(precision) << ": not once in each of three steps";
    }
  }
}

TEST_F(CudaTrainer, AWrongLabelIsNamedAndLeavesTheGpuUsable) {
  class Line : public TrainingTask {
   public:
    std::shared_ptr<torch::nn::Module> module() const override { return line_.ptr(); }
    TaskOutput forward(const Batch& batch) override {
      return classify(line_(batch.input), batch.target);
    }

   private:
    torch::nn::Linear line_{6, 3};
  };
  at::Tensor target = at::arange(16, at::kLong).remainder(3);
  target[13] = 8;
  const at::Tensor input = at::arange(96, at::kFloat).sin().reshape({16, 6});
  const auto data = make_dataset({.input = input, .target = target});
  Line task;
  EXPECT_THAT(
      [&] {
        Trainer(task, {.train = data, .held_out = {}}, make_single_group(),
                small_options(TrainDevice::Cuda))
            .run();
      },
      ThrowsMessage<UsageError>(HasSubstr("the label 8 is not in [0, 3)")));
  EXPECT_EQ(at::ones({3}, at::TensorOptions(testing_support::gpu())).sum().item<float>(), 3);
}

// One rank of two asks for a terabyte in its third step.
TEST_F(CudaTrainer, TooLittleMemoryIsExplainedAndALostPeerToTheOthers) {
  run_ranks(2,
            [](Group& group) {
              class Greedy : public TrainingTask {
               public:
                explicit Greedy(bool is_greedy) : is_greedy_(is_greedy) {}
                std::shared_ptr<torch::nn::Module> module() const override { return line_.ptr(); }
                TaskOutput forward(const Batch& batch) override {
                  if (is_greedy_ && ++num_forwards_ == 3) {
                    at::empty({int64_t{1} << 40}, batch.input.options());
                  }
                  return classify(line_(batch.input), batch.target);
                }

               private:
                torch::nn::Linear line_{6, 3};
                bool is_greedy_;
                int num_forwards_ = 0;
              };
              const auto train = [&] {
                Greedy task(group.rank() == 1);
                const Group own = make_group(
                    group.store(), {.name = "greedy", .rank = group.rank(), .size = group.size()});
                Trainer(task, {.train = points(96, 0), .held_out = {}}, own,
                        {.epochs = 1, .batch_size = 16, .device = TrainDevice::Cuda})
                    .run();
              };
              if (group.rank() == 1) {
                EXPECT_THAT(train,
                            ThrowsMessage<OutOfMemoryError>(AllOf(
                                HasSubstr("step 2, a piece of 8 samples at a time, does not fit"),
                                HasSubstr("4096.00 GiB were asked for"), HasSubstr("are free"),
                                HasSubstr("lower train.batch_size (it is 16)"))));
              } else {
                EXPECT_THAT(train, ThrowsMessage<PeerLostError>(HasSubstr("rank 1")));
              }
            },
            {.limit = std::chrono::seconds(120)});
}

TEST_F(CudaTrainer, TensorsOfATaskMoveWithIt) {
  class Weighted : public TrainingTask {
   public:
    std::shared_ptr<torch::nn::Module> module() const override { return line_.ptr(); }
    TaskOutput forward(const Batch& batch) override {
      const at::Tensor loss = at::cross_entropy_loss(line_(batch.input), batch.target, weights_);
      const at::Tensor made = at::ones({3}, at::kCUDA);  // no number: the rank's own GPU
      return {.loss = loss + 0 * (made * weights_).sum()};
    }
    void move_to(at::Device device) override {
      TrainingTask::move_to(device);
      weights_ = weights_.to(device);
    }

   private:
    torch::nn::Linear line_{6, 3};
    at::Tensor weights_ = at::tensor({1.0f, 2.0f, 3.0f});
  };
  Weighted task;
  Trainer trainer(task, test::points_to_learn(), make_single_group(),
                  small_options(TrainDevice::Cuda, 1));
  const TrainResult result = trainer.run();
  EXPECT_TRUE(std::isfinite(result.last.loss));
  EXPECT_EQ(result.evaluation->num_counted, 37);
  EXPECT_EQ(trainer.evaluate().loss, result.evaluation->loss);
  EXPECT_TRUE(task.module()->parameters()[0].is_cuda());
}

}  // namespace
}  // namespace lockstep

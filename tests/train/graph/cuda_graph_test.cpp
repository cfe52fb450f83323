// A step as one CUDA graph: the bits of eager steps for our models and for one's own, what is
// refused, memory, and what it waits for.
#include <cmath>
#include <cstdlib>

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <lockstep/base/error.h>
#include <lockstep/models/gpt2.h>

#include "support/device_waits.h"
#include "support/gpu.h"
#include "support/temp_folder.h"
#include "train/device_tasks.h"
#include "train/graph/graph_tasks.h"
#include "train/step/graphed_step.h"

namespace lockstep {
namespace {

using test::CountedTask;
using test::graph_data;
using test::graph_options;
using test::GraphRun;
using test::run_task;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::gpu;
using testing_support::SyncCounter;
using train::GraphedStep;

// cuBLAS reads it once, and the first case may not be one that asks for determinism.
[[maybe_unused]] const int is_set = ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);

constexpr int kEager = GraphedStep::kWarmUpSteps;
constexpr const char* kRecorded = "steps are one graph from here on";

TrainerOptions options_of(TrainGraph graph) {
  TrainerOptions options = graph_options(TrainDevice::Cuda);
  options.graph = graph;
  return options;
}

class CudaGraph : public testing::Test {
 protected:
  void SetUp() override { LOCKSTEP_NEEDS_GPU(); }
};

GraphRun run_own(const TrainerOptions& options) {
  CountedTask task;
  GraphRun run = run_task(task, graph_data(), options);
  const bool is_graph = options.graph == TrainGraph::Auto;
  EXPECT_EQ(run.has_line(kRecorded), is_graph);
  // The forward is called in eager steps and for the recording.
  const int64_t pieces = task.num_forwards / (is_graph ? kEager + 1 : run.result.steps);
  EXPECT_EQ(task.num_forwards, pieces * (is_graph ? kEager + 1 : run.result.steps));
  return run;
}

TEST_F(CudaGraph, ReplaysHaveTheBitsOfEagerSteps) {
  for (const test::GraphCase& one : test::graph_cases()) {
    TrainerOptions options = options_of(TrainGraph::Off);
    one.set(options);
    const GraphRun eager = run_own(options);
    options.graph = TrainGraph::Auto;
    EXPECT_EQ(run_own(options).bits(), eager.bits()) << one.name;
  }
}

class Gpt2Task : public TrainingTask {
 public:
  explicit Gpt2Task(double dropout)
      : model_(GPT2Options{.vocab_size = 61,
                           .hidden_size = 32,
                           .num_layers = 2,
                           .num_heads = 4,
                           .max_positions = 24,
                           .embedding_dropout = dropout,
                           .attention_dropout = dropout,
                           .residual_dropout = dropout}) {}
  std::shared_ptr<torch::nn::Module> module() const override { return model_.ptr(); }
  TaskOutput forward(const Batch& batch) override {
    return {.loss = next_token_loss(model_(batch.input), batch.target),
            .num_counted = batch.target.size(0) * (batch.target.size(1) - 1)};
  }

 private:
  GPT2 model_;
};

test::SmallRun make_run(const std::string& model, double dropout) {
  if (model != "gpt2") {
    return test::make_small_run(model, dropout);
  }
  test::SmallRun run = test::make_small_run("mytransformer");  // its sentences
  run.task = std::make_unique<Gpt2Task>(dropout);
  return run;
}

TEST_F(CudaGraph, OurModelsHaveTheBitsOfEagerSteps) {
  for (const std::string model : {"mlp", "gpt2", "convnet", "mytransformer", "bert", "resnet"}) {
    for (const auto precision : {Precision::Float32, Precision::BFloat16, Precision::Float16}) {
      std::string bits[2];
      for (const auto graph : {TrainGraph::Off, TrainGraph::Auto}) {
        TrainerOptions options = options_of(graph);
        options.precision = precision;
        options.batch_size = 8;  // 24 steps of 64 samples
        const test::SmallRun run = make_run(model, 0.2);
        const GraphRun found = run_task(*run.task, run.data, options);
        EXPECT_EQ(found.has_line(kRecorded), graph == TrainGraph::Auto) << model;
        EXPECT_EQ(found.result.steps, 24);
        bits[static_cast<int>(graph)] = found.bits();
      }
      EXPECT_EQ(bits[0], bits[1]) << model << " " << static_cast<int>(precision);
    }
  }
}

TEST_F(CudaGraph, OptimizersOfOnesOwnStepAfterTheReplay) {
  TrainerOptions options = options_of(TrainGraph::Off);
  options.lr = TrainerOptions().lr;
  options.make_optimizer = [](torch::nn::Module& module) {
    return std::make_unique<torch::optim::Adam>(module.parameters(),
                                                torch::optim::AdamOptions(1e-2).amsgrad(true));
  };
  const GraphRun eager = run_own(options);
  options.graph = TrainGraph::Auto;
  EXPECT_EQ(run_own(options).bits(), eager.bits());
}

TEST_F(CudaGraph, AnOverflowLowersTheLossScaleAndChangesNothing) {
  class Steep : public CountedTask {
   public:
    TaskOutput forward(const Batch& batch) override {
      TaskOutput output = CountedTask::forward(batch);
      output.loss = output.loss * 3000;  // finite from a scale of 2^9 or so on
      return output;
    }
  };
  std::string bits[2];
  for (const auto graph : {TrainGraph::Off, TrainGraph::Auto}) {
    TrainerOptions options = options_of(graph);
    options.precision = Precision::Float16;
    options.on_bad_step = BadStepRule::Stop;
    options.lr = 1e-3;
    Steep task;
    const GraphRun run = run_task(task, graph_data(), options);
    EXPECT_GT(run.result.num_bad_steps, kEager + 1) << "none of a replay";
    EXPECT_LT(run.result.num_bad_steps, run.result.steps - 5);
    bits[static_cast<int>(graph)] = run.bits();
  }
  EXPECT_EQ(bits[0], bits[1]);
}

TEST_F(CudaGraph, OtherShapesAreEagerAndTheGraphGoesOn) {
  const TrainerData data{.train = std::make_shared<test::TwoLengths>(128), .held_out = {}};
  test::MeanTask first, second;
  const GraphRun eager = run_task(first, data, options_of(TrainGraph::Off));
  const GraphRun graph = run_task(second, data, options_of(TrainGraph::Auto));
  EXPECT_EQ(graph.bits(), eager.bits());
  EXPECT_EQ(graph.num_lines(kRecorded), 1);
  EXPECT_EQ(graph.num_lines("other shapes"), 1);
  EXPECT_LT(second.num_forwards, 16);
  EXPECT_GT(second.num_forwards, kEager + 1);
}

// Afterwards the allocator and the generators are as before: eager steps go on with dropout.
TEST_F(CudaGraph, WhatCannotBeRecordedIsEagerAndTheReasonIsLoggedOnce) {
  struct Spoiler {
    const char* reason;
    void (*spoil)(TaskOutput& output);
  };
  const Spoiler spoilers[] = {
      {"look in forward() for item()",
       [](TaskOutput& output) { EXPECT_TRUE(std::isfinite(output.loss.item<double>())); }},
      {"look in forward() for item()",
       [](TaskOutput& output) {
         output.loss = output.loss * output.loss.detach().cpu().to(gpu());
       }},
      {"draws random numbers of the CPU", [](TaskOutput& output) {
         output.loss = output.loss * (1 + 0.01 * at::rand({}).item<double>());
       }}};
  class Spoiled : public CountedTask {
   public:
    explicit Spoiled(const Spoiler& spoiler) : spoiler_(spoiler) {}
    TaskOutput forward(const Batch& batch) override {
      TaskOutput output = CountedTask::forward(batch);
      spoiler_.spoil(output);
      return output;
    }

   private:
    const Spoiler& spoiler_;
  };
  for (const Spoiler& spoiler : spoilers) {
    TrainerOptions options = options_of(TrainGraph::Off);
    options.shards = 2;
    options.accumulate = 2;
    Spoiled first(spoiler), second(spoiler);
    const GraphRun eager = run_task(first, graph_data(), options);
    options.graph = TrainGraph::Auto;
    const GraphRun graph = run_task(second, graph_data(), options);
    EXPECT_EQ(graph.bits(), eager.bits()) << spoiler.reason;
    EXPECT_EQ(graph.num_lines("cannot be recorded"), 1);
    EXPECT_TRUE(graph.has_line(spoiler.reason)) << testing::PrintToString(graph.lines);
    EXPECT_FALSE(graph.has_line(kRecorded));
  }
  // What failed has left nothing behind: the next run records.
  EXPECT_TRUE(run_own(options_of(TrainGraph::Auto)).has_line(kRecorded));
}

TEST_F(CudaGraph, AStopAndAResumeChangeNoBit) {
  for (const auto precision : {Precision::Float32, Precision::Float16}) {
    TrainerOptions options = options_of(TrainGraph::Auto);
    options.precision = precision;
    options.ema_decay = 0.9;
    options.shards = 2;
    options.schedule = Schedule::Constant;  // the others depend on where the run ends
    const GraphRun whole = run_own(options);
    for (const int64_t stop : {2, 9, 17}) {
      const test::TempFolder folder;
      options.checkpoint_dir = folder.path();
      options.checkpoint_every = 3;  // taken between replays
      options.max_steps = stop;
      CountedTask first, second;
      run_task(first, graph_data(), options);
      options.max_steps = 0;
      const GraphRun rest = run_task(second, graph_data(), options);
      EXPECT_EQ(rest.result.resumed_at, stop);
      EXPECT_EQ(rest.result.parameter_hashes, whole.result.parameter_hashes) << stop;
      EXPECT_EQ(rest.losses, std::vector(whole.losses.begin() + stop, whole.losses.end())) << stop;
      options.checkpoint_dir.clear();
    }
  }
}

TEST_F(CudaGraph, AFaultInTheDataOfAReplayIsNamed) {
  const at::Tensor input = at::arange(128 * 6, at::kFloat).mul(1.3).sin().reshape({128, 6});
  for (const int64_t sample : {3, 40, 77, 101, 126}) {
    const at::Tensor target = at::arange(128, at::kLong).remainder(3);
    target[sample] = 8;
    CountedTask task;
    EXPECT_THAT(
        [&] {
          run_task(task,
                   {.train = make_dataset({.input = input, .target = target}), .held_out = {}},
                   options_of(TrainGraph::Auto));
        },
        ThrowsMessage<UsageError>(HasSubstr("the label 8 is not in [0, 3)")));
  }
}

// The task's caller goes on on a stream of its own, before and after the run.
TEST_F(CudaGraph, TheCallersStreamGoesOnAfterTheRun) {
  std::vector<at::Tensor> found[2];
  for (const auto graph : {TrainGraph::Off, TrainGraph::Auto}) {
    CountedTask task;
    TrainerOptions options = options_of(graph);
    Trainer trainer(task, graph_data(), make_single_group(), options);
    trainer.run();
    for (const at::Tensor& parameter : task.module()->parameters()) {
      found[static_cast<int>(graph)].push_back((parameter * 2).detach());
    }
    EXPECT_EQ(trainer.evaluate().num_counted, 37);
  }
  for (size_t i = 0; i < found[0].size(); ++i) {
    EXPECT_TRUE(found[0][i].equal(found[1][i]));
  }
}

// libtorch's own count of the largest memory that was reserved.
int64_t peak_bytes(TrainGraph graph) {
  struct WideImpl : torch::nn::Module {
    WideImpl() {
      for (int i = 0; i < 6; ++i) {
        layers->push_back(torch::nn::Linear(i == 0 ? 6 : 1024, i == 5 ? 3 : 1024));
      }
      register_module("layers", layers);
    }
    at::Tensor forward(at::Tensor x) {
      x = x.repeat_interleave(64, 0);
      for (int i = 0; i < 6; ++i) {
        x = layers[static_cast<size_t>(i)]->as<torch::nn::Linear>()->forward(x);
        x = i < 5 ? x.relu() : x;
      }
      return x;
    }
    torch::nn::ModuleList layers;
  };
  class Wide : public TrainingTask {
   public:
    std::shared_ptr<torch::nn::Module> module() const override { return net_; }
    TaskOutput forward(const Batch& batch) override {
      return classify(net_->forward(batch.input), batch.target.repeat_interleave(64, 0));
    }

   private:
    std::shared_ptr<WideImpl> net_ = std::make_shared<WideImpl>();
  };
  auto* const memory = c10::getDeviceAllocator(at::kCUDA);
  memory->emptyCache();
  memory->resetPeakStats(gpu().index());
  TrainerOptions options = options_of(graph);
  options.batch_size = 64;
  Wide task;
  const GraphRun run = run_task(task, {.train = test::points(640, 0), .held_out = {}}, options);
  EXPECT_EQ(run.has_line(kRecorded), graph == TrainGraph::Auto);
  return memory->getDeviceStats(gpu().index()).reserved_bytes[0].peak;  // of all kinds
}

TEST_F(CudaGraph, TakesNoMoreMemoryThanEagerStepsAndAStepsInputs) {
  const int64_t eager = peak_bytes(TrainGraph::Off);
  const int64_t graph = peak_bytes(TrainGraph::Auto);
  fmt::print("peak: eager {:.1f} MB, graph {:.1f} MB\n", static_cast<double>(eager) / 1e6,
             static_cast<double>(graph) / 1e6);
  EXPECT_GT(eager, 100e6) << "too little to compare";
  // The inputs are small here; a second pool has segments of 2 and 20 MiB of its own that are not
  // full.
  EXPECT_LT(static_cast<double>(graph), static_cast<double>(eager) + (48 << 20));
}

// Ten steps more wait ten times more.
TEST_F(CudaGraph, AStepWaitsForTheDeviceOnce) {
  int* const mode = testing_support::sync_debug_mode();
  ASSERT_NE(mode, nullptr) << "this libtorch hides whether it waits";
  for (const auto precision : {Precision::Float32, Precision::Float16}) {
    int num_syncs[2] = {};
    for (const int longer : {0, 1}) {
      TrainerOptions options = options_of(TrainGraph::Auto);
      options.precision = precision;
      options.shards = 2;
      options.max_steps = 12 + 10 * longer;
      options.epochs = 100;
      options.schedule = Schedule::Constant;
      options.log_every = 1000;
      CountedTask task;
      SyncCounter counter;
      Trainer trainer(task, {.train = test::points(1024, 0), .held_out = {}}, make_single_group(),
                      options);
      *mode = 1;
      trainer.run();
      *mode = 0;
      num_syncs[longer] = counter.num_syncs;
    }
    EXPECT_EQ(num_syncs[1] - num_syncs[0], 10) << static_cast<int>(precision);
  }
}

}  // namespace
}  // namespace lockstep

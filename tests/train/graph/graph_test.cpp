// A step as a graph, on the CPU: the graphs are those of recorded_ops.h, which do what a GPU's do.
#include <cmath>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <lockstep/base/error.h>
#include <lockstep/ddp/reducer.h>

#include "ddp/device/device_path.h"
#include "device/memory.h"
#include "support/fleet.h"
#include "support/late_copies.h"
#include "support/temp_folder.h"
#include "train/graph/graph_tasks.h"
#include "train/graph/recorded_ops.h"
#include "train/step/graphed_step.h"
#include "train/step/step.h"

namespace lockstep {
namespace {

using test::CountedTask;
using test::graph_data;
using test::graph_options;
using test::GraphRun;
using test::run_task;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::GraphLog;
using testing_support::make_recorded_ops;
using testing_support::run_ranks;
using train::GraphedStep;

constexpr int kEager = GraphedStep::kWarmUpSteps;

TrainerOptions options_of(TrainGraph graph) {
  TrainerOptions options = graph_options(TrainDevice::Cpu);
  options.graph = graph;
  return options;
}

class StepGraph : public testing::Test {
 protected:
  GraphRun run(const TrainerOptions& options) {
    CountedTask task;
    GraphRun run = run_task(task, graph_data(), options);
    num_forwards_ = task.num_forwards;
    return run;
  }

  int num_forwards_ = 0;
  std::shared_ptr<GraphLog> log_ = std::make_shared<GraphLog>();
  const ddp::DevicePathOnCpu path_;
  const device::GraphsOnCpu graphs_{[this] { return make_recorded_ops(log_); }};
};

TEST_F(StepGraph, ReplaysHaveTheBitsOfEagerSteps) {
  for (const test::GraphCase& one : test::graph_cases()) {
    *log_ = {};
    TrainerOptions options = options_of(TrainGraph::Off);
    one.set(options);
    const GraphRun eager = run(options);
    const int num_eager_forwards = num_forwards_;
    EXPECT_EQ(log_->num_begun, 0) << one.name;
    options.graph = TrainGraph::Auto;
    const GraphRun graph = run(options);
    EXPECT_EQ(graph.bits(), eager.bits()) << one.name;
    EXPECT_EQ(log_->num_recorded, 1) << one.name;
    EXPECT_EQ(log_->num_replayed, graph.result.steps - kEager) << one.name;
    EXPECT_EQ(num_forwards_ * graph.result.steps, num_eager_forwards * (kEager + 1)) << one.name;
    EXPECT_EQ(log_->num_alive, 0) << one.name;
    EXPECT_EQ(graph.num_lines("steps are one graph from here on"), 1) << one.name;
  }
}

// The cases would prove nothing if what they are about did not happen.
TEST_F(StepGraph, TheCasesAreWhatTheySay) {
  TrainerOptions options = options_of(TrainGraph::Off);
  const GraphRun plain = run(options);
  EXPECT_GT(*std::max_element(plain.norms.begin(), plain.norms.end()), options.clip_norm);
  for (const test::GraphCase& one : test::graph_cases()) {
    TrainerOptions changed = options_of(TrainGraph::Off);
    one.set(changed);
    const GraphRun other = run(changed);
    if (std::string_view(one.name) == "adamw" ||
        std::string_view(one.name) == "evaluations between steps") {
      EXPECT_EQ(other.losses, plain.losses);
    } else if (std::string_view(one.name) == "an average") {
      EXPECT_NE(other.result.evaluation->loss, plain.result.evaluation->loss);
    } else {
      EXPECT_NE(other.losses, plain.losses) << one.name;
    }
    if (std::string_view(one.name) == "spikes") {
      EXPECT_GT(other.result.num_bad_steps, 0);
      EXPECT_LT(other.result.num_bad_steps, other.result.steps / 2);
    }
  }
}

TEST_F(StepGraph, AnOptimizerOfOnesOwnStepsAfterTheReplay) {
  TrainerOptions options = options_of(TrainGraph::Off);
  const TrainerOptions untouched;
  options.lr = untouched.lr;
  options.make_optimizer = [](torch::nn::Module& module) {
    return std::make_unique<torch::optim::SGD>(module.parameters(),
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  };
  const GraphRun eager = run(options);
  options.graph = TrainGraph::Auto;
  EXPECT_EQ(run(options).bits(), eager.bits());
  EXPECT_EQ(log_->num_replayed, 24 - kEager);
}

// In float16 the first steps of a steep loss overflow: the scale is lowered while steps replay.
TEST_F(StepGraph, AnOverflowLowersTheLossScaleAndChangesNothing) {
  class Steep : public CountedTask {
   public:
    TaskOutput forward(const Batch& batch) override {
      TaskOutput output = CountedTask::forward(batch);
      output.loss = output.loss * 3000;  // finite from a scale of 2^9 or so on
      return output;
    }
  };
  TrainerOptions options = options_of(TrainGraph::Off);
  options.precision = Precision::Float16;
  options.on_bad_step = BadStepRule::Stop;
  options.lr = 1e-3;
  Steep first, second;
  const GraphRun eager = run_task(first, graph_data(), options);
  EXPECT_GT(eager.result.num_bad_steps, kEager + 1);
  EXPECT_LT(eager.result.num_bad_steps, eager.result.steps - 5);
  options.graph = TrainGraph::Auto;
  EXPECT_EQ(run_task(second, graph_data(), options).bits(), eager.bits());
  EXPECT_EQ(log_->num_replayed, 24 - kEager);
}

TEST_F(StepGraph, OtherShapesAreEagerAndTheGraphGoesOn) {
  const TrainerData data{.train = std::make_shared<test::TwoLengths>(128), .held_out = {}};
  TrainerOptions options = options_of(TrainGraph::Off);
  test::MeanTask first, second;
  const GraphRun eager = run_task(first, data, options);
  options.graph = TrainGraph::Auto;
  const GraphRun graph = run_task(second, data, options);
  EXPECT_EQ(graph.bits(), eager.bits());
  EXPECT_EQ(log_->num_recorded, 1);
  EXPECT_GT(log_->num_replayed, 8);
  EXPECT_LT(log_->num_replayed, 24 - kEager);
  EXPECT_EQ(graph.num_lines("other shapes"), 1);
  // The forward ran in each eager step and in the recording.
  EXPECT_EQ(second.num_forwards, 24 - log_->num_replayed + 1);
}

TEST_F(StepGraph, AForwardThatWaitsIsEagerAndTheReasonIsLoggedOnce) {
  class Waits : public CountedTask {
   public:
    TaskOutput forward(const Batch& batch) override {
      TaskOutput output = CountedTask::forward(batch);
      sum += output.loss.item<double>();
      return output;
    }
    double sum = 0;
  };
  for (const int accumulate : {1, 4}) {  // the recording ends in the middle of a step
    *log_ = {};
    TrainerOptions options = options_of(TrainGraph::Off);
    options.accumulate = accumulate;
    options.shards = accumulate == 1 ? 1 : 2;
    Waits first, second;
    const GraphRun eager = run_task(first, graph_data(), options);
    options.graph = TrainGraph::Auto;
    const GraphRun graph = run_task(second, graph_data(), options);
    EXPECT_EQ(graph.bits(), eager.bits());
    EXPECT_EQ(log_->num_begun, 1);
    EXPECT_EQ(log_->num_recorded, 0);
    EXPECT_EQ(log_->num_replayed, 0);
    EXPECT_EQ(log_->num_alive, 0);
    EXPECT_EQ(graph.num_lines("cannot be recorded"), 1);
    EXPECT_TRUE(graph.has_line("operation not permitted when stream is capturing"));
    EXPECT_TRUE(graph.has_line("look in forward() for item()"));
  }
}

// Fails only in its last piece, or in backward: the reducer must begin the step anew.
TEST_F(StepGraph, ARecordingThatFailsLateLeavesNothingBehind) {
  class FailsLate : public CountedTask {
   public:
    TaskOutput forward(const Batch& batch) override {
      TaskOutput output = CountedTask::forward(batch);
      if (num_forwards == 4 * kEager + 3) {  // the third piece of the recording
        output.loss.register_hook([](const at::Tensor& gradient) {
          EXPECT_GT(gradient.item<double>(), 0);
          return gradient;
        });
      }
      return output;
    }
  };
  TrainerOptions options = options_of(TrainGraph::Auto);
  options.shards = 4;
  FailsLate late;
  const GraphRun graph = run_task(late, graph_data(), options);
  EXPECT_EQ(log_->num_begun, 1);
  EXPECT_EQ(log_->num_recorded, 0);
  options.graph = TrainGraph::Off;
  EXPECT_EQ(graph.bits(), run(options).bits());
}

// What the host knows of an output is counted once a step, though forward() is not called.
TEST_F(StepGraph, WhatTheHostCountsIsCountedInEveryStep) {
  class HostCounts : public CountedTask {
   public:
    TaskOutput forward(const Batch& batch) override {
      TaskOutput output = CountedTask::forward(batch);
      output.num_counted = batch.target.size(0);
      output.num_correct = batch.target.size(0) - 3;
      return output;
    }
  };
  TrainerOptions options = options_of(TrainGraph::Auto);
  options.accumulate = 2;
  HostCounts task;
  int num_reports = 0;
  run_task(task, graph_data(), options, [&](const StepReport& report) {
    ++num_reports;
    EXPECT_EQ(report.train_accuracy, 10.0 / 16) << "step " << report.step;
  });
  EXPECT_EQ(num_reports, 24);
  EXPECT_EQ(log_->num_recorded, 1);
}

// A checkpoint is copied while the next step begins: what waits for it is called before the replay,
// which changes the parameters.
TEST_F(StepGraph, AReplayComesAfterWhatItMustWaitFor) {
  CountedTask task;
  const TrainerOptions options = options_of(TrainGraph::Auto);
  train::StepRunner runner(task, make_single_group(),
                           {.options = options,
                            .pieces = train::cut_into_pieces(options, 1, 0, 1),
                            .device = at::kCPU,
                            .graphs = make_recorded_ops(log_)});
  const Batch batch{.input = at::arange(96, at::kFloat).sin().view({16, 6}),
                    .target = at::arange(16, at::kLong).remainder(3)};
  for (int step = 0; step < 8; ++step) {
    const int num_replayed = log_->num_replayed;
    const at::Tensor before = task.module()->parameters().front().detach().clone();
    int num_calls = 0;
    runner.run({.step = step,
                .lr = 0.01,
                .next_batch = [&] { return batch; },
                .before_update =
                    [&] {
                      ++num_calls;
                      EXPECT_EQ(log_->num_replayed, num_replayed) << step;
                      EXPECT_TRUE(task.module()->parameters().front().equal(before)) << step;
                    }});
    EXPECT_EQ(num_calls, 1) << step;
    EXPECT_FALSE(task.module()->parameters().front().equal(before)) << step;
  }
  EXPECT_EQ(log_->num_replayed, 8 - kEager);
}

TEST_F(StepGraph, AStopAndAResumeChangeNoBit) {
  const device::CopiesOnCpu late(testing_support::make_late_copies);
  TrainerOptions options = options_of(TrainGraph::Auto);
  options.ema_decay = 0.9;
  options.shards = 2;
  options.schedule = Schedule::Constant;  // the others depend on where the run ends
  const GraphRun whole = run(options);
  for (const int64_t stop : {2, 9, 17}) {
    const test::TempFolder folder;
    options.checkpoint_dir = folder.path();
    options.checkpoint_every = 3;  // taken between replays
    options.max_steps = stop;
    run(options);
    options.max_steps = 0;
    const GraphRun rest = run(options);
    EXPECT_EQ(rest.result.resumed_at, stop);
    EXPECT_EQ(rest.result.parameter_hashes, whole.result.parameter_hashes) << stop;
    EXPECT_EQ(rest.result.evaluation->loss, whole.result.evaluation->loss) << stop;
    EXPECT_EQ(rest.losses, std::vector(whole.losses.begin() + stop, whole.losses.end())) << stop;
  }
}

TEST_F(StepGraph, MayBeginAndEndBetweenARunAndItsContinuation) {
  TrainerOptions options = options_of(TrainGraph::Off);
  options.schedule = Schedule::Constant;
  const GraphRun whole = run(options);
  const test::TempFolder folder;
  options.graph = TrainGraph::Auto;
  options.checkpoint_dir = folder.path();
  options.max_steps = 8;
  run(options);
  options.graph = TrainGraph::Off;
  options.max_steps = 0;
  EXPECT_EQ(run(options).result.parameter_hashes, whole.result.parameter_hashes);
}

TEST_F(StepGraph, AFaultInTheDataOfAReplayIsNamed) {
  const at::Tensor input = at::arange(128 * 6, at::kFloat).mul(1.3).sin().reshape({128, 6});
  int num_in_replays = 0;
  for (const int64_t sample : {3, 40, 77, 101, 126}) {  // in batches of their own
    *log_ = {};
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
    num_in_replays += log_->num_replayed > 0 ? 1 : 0;
  }
  EXPECT_GT(num_in_replays, 1);
}

// A gradient that is not finite, in a step that is replayed.
TEST_F(StepGraph, ABadStepChangesNothing) {
  const at::Tensor input = at::arange(128 * 6, at::kFloat).mul(1.3).sin().reshape({128, 6});
  for (const int64_t sample : {5, 70, 126}) {
    at::Tensor broken = input.clone();
    broken[sample][2] = NAN;
    const TrainerData data{
        .train = make_dataset({.input = broken, .target = at::arange(128, at::kLong).remainder(3)}),
        .held_out = {}};
    TrainerOptions options = options_of(TrainGraph::Off);
    CountedTask first, second;
    // BatchNorm's statistics are not parameters: a bad step spoils them in both ways.
    const GraphRun eager = run_task(first, data, options);
    EXPECT_EQ(eager.result.num_bad_steps, 3) << "one in each epoch";
    options.graph = TrainGraph::Auto;
    const GraphRun graph = run_task(second, data, options);
    EXPECT_EQ(graph.result.num_bad_steps, 3);
    EXPECT_EQ(graph.result.parameter_hashes, eager.result.parameter_hashes);
    options.on_bad_step = BadStepRule::Stop;
    EXPECT_THAT([&] { run_task(second, data, options); },
                ThrowsMessage<UsageError>(HasSubstr("has a gradient that is not finite")));
  }
}

// What a recording takes for granted is looked at before each replay.
TEST_F(StepGraph, ParametersThatMoveAreRecordedAnew) {
  const auto train = [&](TrainGraph graph, int64_t every) {
    CountedTask task;
    return run_task(task, graph_data(), options_of(graph), [&](const StepReport& report) {
      if (report.step % every == 0) {
        at::Tensor parameter = task.module()->parameters().front();
        parameter.set_data(parameter.detach().clone());
      }
    });
  };
  const GraphRun eager = train(TrainGraph::Off, 8);
  const GraphRun graph = train(TrainGraph::Auto, 8);
  EXPECT_EQ(graph.bits(), eager.bits());
  EXPECT_EQ(log_->num_recorded, 3);
  EXPECT_EQ(graph.num_lines("recorded anew"), 2);
  *log_ = {};
  const GraphRun often = train(TrainGraph::Auto, 5);
  EXPECT_EQ(often.bits(), eager.bits());
  EXPECT_EQ(log_->num_recorded, GraphedStep::kMostRecordings);
  EXPECT_TRUE(often.has_line("moved, or others were trained, after each of 3 recordings"));
}

TEST_F(StepGraph, RanksThatShareStepsAreEagerAndSayWhy) {
  run_ranks(2, [](Group& group) {
    const auto log = std::make_shared<GraphLog>();
    const ddp::DevicePathOnCpu path;
    const device::GraphsOnCpu graphs([&] { return make_recorded_ops(log); });
    CountedTask task;
    const GraphRun run = run_task(task, graph_data(), options_of(TrainGraph::Auto), {}, group);
    EXPECT_EQ(log->num_begun, 0);
    EXPECT_EQ(run.num_lines("no graph, as train.graph = \"auto\": gradients of 2 ranks"),
              group.rank() == 0 ? 1 : 0);
  });
}

TEST(GraphOfTheCpu, IsNoneAndSaysSo) {
  CountedTask task;
  const GraphRun run = run_task(task, graph_data(), options_of(TrainGraph::Auto));
  EXPECT_EQ(run.num_lines("no graph, as train.graph = \"auto\": the CPU has no graphs"), 1);
  const GraphRun off = run_task(task, graph_data(), options_of(TrainGraph::Off));
  EXPECT_FALSE(off.has_line("graph"));
}

// The limit and the norm on the device are those of the host.
TEST_F(StepGraph, GradientsAreClippedOnTheDeviceAsByTheHost) {
  for (const double limit : {0.05, 1e9}) {
    std::vector<at::Tensor> found[2];
    double norms[2] = {};
    for (const bool is_on_device : {false, true}) {
      const test::Net net;
      Reducer reducer(net.ptr(), make_single_group());
      const at::Tensor input = at::arange(60, at::kFloat).mul(0.9).sin().view({10, 6});
      at::manual_seed(3);
      net.ptr()->forward(input).square().sum().backward();
      if (is_on_device) {
        const at::Tensor on_device = at::full({}, limit, at::kDouble);
        norms[1] = reducer.clip_grad_norm(on_device).item<double>();
        EXPECT_THROW(reducer.clip_grad_norm(at::full({}, limit, at::kFloat)), UsageError);
        EXPECT_LT(reducer.clip_grad_norm(at::Tensor()).item<double>(), limit * 1.001);
      } else {
        norms[0] = reducer.clip_grad_norm(limit);
      }
      for (const at::Tensor& parameter : net->parameters()) {
        found[is_on_device ? 1 : 0].push_back(parameter.grad().clone());
      }
    }
    EXPECT_EQ(norms[0], norms[1]);
    EXPECT_GT(norms[0], 0.05);
    for (size_t i = 0; i < found[0].size(); ++i) {
      EXPECT_TRUE(found[0][i].equal(found[1][i])) << i;
    }
  }
}

}  // namespace
}  // namespace lockstep

// Training in 16 bits leaves no trace of the scale that the loss has meanwhile: what becomes of the
// parameters is what becomes of them without it, to the last bit where all else is exact. An
// optimizer that divides by the size of its gradients would hide it; SGD does not.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <lockstep/train/trainer.h>

#include "support/fleet.h"
#include "train/points.h"
#include "train/small_net.h"

namespace lockstep {
namespace {

using testing_support::run_ranks;

constexpr int64_t kRows = 60;
constexpr int64_t kBatch = 12;

// A line, whose loss has no operation that autocast would make in 16 bits: a factor of the loss
// that is a power of two changes no bit of the gradients but their exponents.
class ExactTask : public TrainingTask {
 public:
  std::shared_ptr<torch::nn::Module> module() const override { return line_; }
  TaskOutput forward(const Batch& batch) override {
    const at::Tensor miss = (batch.input * line_->weight).sum(1) + line_->bias - batch.target;
    return {.loss = (miss * miss).mean(), .num_counted = batch.target.size(0)};
  }

 private:
  struct Line : torch::nn::Module {
    Line() {
      weight = register_parameter("weight", at::zeros({5}));
      bias = register_parameter("bias", at::zeros({1}));
    }
    at::Tensor weight, bias;
  };
  std::shared_ptr<Line> line_ = std::make_shared<Line>();
};

TrainerData exact_data() {
  const at::Tensor input = at::arange(kRows * 5, at::kFloat).mul(1.7).sin().reshape({kRows, 5});
  const at::Tensor target = at::arange(kRows, at::kFloat).mul(0.9).cos().add(0.3);
  return {.train = make_dataset({input, target}), .held_out = nullptr};
}

struct Steps {
  std::vector<at::Tensor> parameters;  // all of them after each step; first, before any
  std::vector<double> norms;           // of the gradients
};

at::Tensor parameters_of(const TrainingTask& task) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : task.module()->parameters()) {
    all.push_back(parameter.detach().flatten());
  }
  return at::cat(all);
}

// What rank 0 sees of it; the other ranks see nothing.
Steps take_steps(TrainingTask& task, const TrainerData& data, Group& group,
                 const TrainerOptions& options) {
  Steps steps{.parameters = {parameters_of(task)}, .norms = {}};
  const TrainWatcher watcher{.on_step = [&](const StepReport& report) {
    steps.parameters.push_back(parameters_of(task));
    steps.norms.push_back(report.grad_norm);
  }};
  const TrainResult result = Trainer(task, data, group, options, watcher).run();
  EXPECT_EQ(result.num_bad_steps, 0);
  EXPECT_TRUE(result.same_bits());
  return steps;
}

TrainerOptions exact_options() {
  return {.epochs = 2,
          .batch_size = kBatch,
          .threads = 1,
          .optimizer = OptimizerKind::Sgd,
          .lr = 0.05,
          .weight_decay = 0,
          .momentum = 0,
          .schedule = Schedule::Constant,
          .clip_norm = 0,
          .log_every = 1,
          .workers = 0};
}

void expect_no_trace(Group& group, TrainerOptions options) {
  Steps exact;
  {
    ExactTask task;
    exact = take_steps(task, exact_data(), group, options);
  }
  for (const Precision precision : {Precision::Float16, Precision::BFloat16}) {
    options.precision = precision;
    ExactTask task;
    const Steps steps = take_steps(task, exact_data(), group, options);
    ASSERT_EQ(steps.norms.size(), exact.norms.size());
    for (size_t i = 0; i < steps.norms.size(); ++i) {
      if (options.clip_norm == 0) {
        EXPECT_EQ(steps.norms[i], exact.norms[i]) << "step " << i + 1;
        EXPECT_TRUE(steps.parameters[i + 1].equal(exact.parameters[i + 1])) << "step " << i + 1;
      } else {  // the limit is compared with the scaled norm and 1e-6
        EXPECT_NEAR(steps.norms[i], exact.norms[i], 2e-5 * exact.norms[i]) << "step " << i + 1;
        EXPECT_TRUE(steps.parameters[i + 1].allclose(exact.parameters[i + 1], 2e-5, 1e-7))
            << "step " << i + 1 << ": " << steps.parameters[i + 1] - exact.parameters[i + 1];
      }
    }
  }
}

// One piece or several, added up in the order of the ranks or of a tree; clipped or not.
void expect_no_trace_of_any(Group& group) {
  for (const int64_t accumulate : {1, 2}) {
    for (const double clip_norm : {0.0, 0.02}) {
      SCOPED_TRACE(::testing::Message()
                   << group.size() << " ranks, accumulate " << accumulate << ", " << clip_norm);
      TrainerOptions options = exact_options();
      options.accumulate = accumulate;
      options.clip_norm = clip_norm;
      expect_no_trace(group, options);
    }
  }
}

TEST(TrainerScale, LeavesNoTraceInTheParameters) {
  Group alone = make_single_group();
  expect_no_trace_of_any(alone);
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, expect_no_trace_of_any);
  }
}

TEST(TrainerScale, LeavesNoTraceWithAnyOptimizer) {
  Group group = make_single_group();
  TrainerOptions options = exact_options();
  options.momentum = 0.9;
  options.accumulate = 3;  // which is added up outside of the tree
  expect_no_trace(group, options);
  for (const OptimizerKind kind : {OptimizerKind::AdamW, OptimizerKind::Lion}) {
    options.optimizer = kind;
    expect_no_trace(group, options);
  }
  TrainerOptions own{.epochs = 2,
                     .batch_size = kBatch,
                     .threads = 1,
                     .schedule = Schedule::Constant,
                     .clip_norm = 0,
                     .log_every = 1,
                     .workers = 0};
  own.make_optimizer = [](torch::nn::Module& module) {
    return std::make_unique<torch::optim::SGD>(module.parameters(), 0.05);
  };
  expect_no_trace(group, own);
}

// After 2000 good steps the scale is doubled, between a backward and its update.
TEST(TrainerScale, LeavesNoTraceWhereItChanges) {
  Group group = make_single_group();
  TrainerOptions options = exact_options();
  options.epochs = 401;
  expect_no_trace(group, options);
}

// A net whose products are in 16 bits: a step of SGD is as long as the gradient that is reported,
// or as the limit that it was cut to.
TEST(TrainerScale, AStepIsAsLongAsItsGradient) {
  for (const Precision precision : {Precision::Float32, Precision::BFloat16, Precision::Float16}) {
    for (const double clip_norm : {0.0, 0.05}) {
      SCOPED_TRACE(::testing::Message()
                   << "precision " << static_cast<int>(precision) << ", clip " << clip_norm);
      TrainerOptions options = exact_options();
      options.lr = 0.5;
      options.clip_norm = clip_norm;
      options.precision = precision;
      test::NetTask task;
      Group group = make_single_group();
      const Steps steps = take_steps(task, {test::points(140, 0), nullptr}, group, options);
      ASSERT_GT(steps.norms.size(), 10u);
      for (size_t i = 0; i < steps.norms.size(); ++i) {
        const double length = (steps.parameters[i + 1] - steps.parameters[i]).norm().item<double>();
        const double expected = clip_norm == 0 ? steps.norms[i] : clip_norm;
        EXPECT_GT(steps.norms[i], clip_norm);
        EXPECT_NEAR(length, options.lr * expected, 2e-4 * options.lr * expected)
            << "step " << i + 1;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep

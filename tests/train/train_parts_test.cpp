// The parts of a step, one by one.
#include <cmath>
#include <limits>
#include <set>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "train/data_order.h"
#include "train/step/average.h"
#include "train/step/bad_steps.h"
#include "train/step/optimizer.h"
#include "train/step/precision.h"
#include "train/step/schedule.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Schedule, RisesInALineAndEndsAtItsFloor) {
  TrainerOptions options{.lr = 1, .warmup_steps = 4, .min_lr_share = 0.1};
  EXPECT_DOUBLE_EQ(train::learning_rate(options, 0, 105), 0.25);
  EXPECT_DOUBLE_EQ(train::learning_rate(options, 3, 105), 1);
  EXPECT_DOUBLE_EQ(train::learning_rate(options, 4, 105), 1);
  EXPECT_DOUBLE_EQ(train::learning_rate(options, 54, 105), 0.55) << "half of a cosine is half way";
  EXPECT_DOUBLE_EQ(train::learning_rate(options, 104, 105), 0.1);
  options.schedule = Schedule::Linear;
  EXPECT_DOUBLE_EQ(train::learning_rate(options, 29, 105), 0.775);
  EXPECT_DOUBLE_EQ(train::learning_rate(options, 104, 105), 0.1);
  options.schedule = Schedule::Constant;
  EXPECT_DOUBLE_EQ(train::learning_rate(options, 104, 105), 1);
}

TEST(Schedule, ARunThatIsAllWarmUpHasNoDivisionByZero) {
  const TrainerOptions options{.lr = 1, .warmup_steps = 10};
  for (int64_t step = 0; step < 10; ++step) {
    EXPECT_TRUE(std::isfinite(train::learning_rate(options, step, 5)));
  }
  EXPECT_TRUE(std::isfinite(train::learning_rate({.lr = 1}, 0, 1)));
}

torch::nn::Sequential two_layers() {
  torch::nn::Sequential model(torch::nn::Linear(5, 7), torch::nn::Linear(7, 3));
  int64_t seed = 1;
  for (at::Tensor& parameter : model->parameters()) {
    const at::NoGradGuard no_grad;
    parameter.copy_(at::arange(parameter.numel(), at::kFloat)
                        .mul(0.37 * double(seed++))
                        .sin()
                        .reshape(parameter.sizes()));
  }
  return model;
}

// The same gradients for every optimizer: a function of the parameters and the step.
void set_gradients(const std::vector<at::Tensor>& parameters, int step) {
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = parameter.detach().mul(0.5).add(0.1 * (step + 1)).cos();
  }
}

void expect_near(const torch::nn::Sequential& a, const torch::nn::Sequential& b) {
  for (size_t i = 0; i < a->parameters().size(); ++i) {
    EXPECT_TRUE(a->parameters()[i].allclose(b->parameters()[i], 1e-6, 1e-7)) << "parameter " << i;
  }
}

// libtorch's own, with the same two groups: matrices decayed, vectors not.
template <typename Base, typename Options>
std::unique_ptr<Base> reference(const torch::nn::Sequential& model, Options decayed) {
  std::vector<at::Tensor> matrices, vectors;
  for (const at::Tensor& parameter : model->parameters()) {
    (parameter.dim() >= 2 ? matrices : vectors).push_back(parameter);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<Options>(decayed));
  groups.emplace_back(vectors, std::make_unique<Options>(Options(decayed).weight_decay(0)));
  return std::make_unique<Base>(groups, decayed);
}

TEST(OptimizerParts, AdamWAndSgdAreLibtorchs) {
  for (const auto kind : {OptimizerKind::AdamW, OptimizerKind::Sgd}) {
    const auto ours = two_layers(), theirs = two_layers();
    const TrainerOptions options{.optimizer = kind, .weight_decay = 0.1};
    const auto optimizer = train::make_optimizer({*ours, options}, options);
    std::unique_ptr<torch::optim::Optimizer> peer;
    if (kind == OptimizerKind::AdamW) {
      peer = reference<torch::optim::AdamW>(theirs,
                                            torch::optim::AdamWOptions(0.01).weight_decay(0.1));
    } else {
      peer = reference<torch::optim::SGD>(
          theirs, torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(0.1));
    }
    for (int step = 0; step < 20; ++step) {
      set_gradients(ours->parameters(), step);
      set_gradients(theirs->parameters(), step);
      optimizer->step(0.01);
      peer->step();
    }
    expect_near(ours, theirs);
  }
}

TEST(OptimizerParts, LionIsItsFormula) {
  const auto ours = two_layers(), theirs = two_layers();
  const TrainerOptions options{
      .optimizer = OptimizerKind::Lion, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.99};
  const auto optimizer = train::make_optimizer({*ours, options}, options);
  std::vector<at::Tensor> means;
  for (const at::Tensor& parameter : theirs->parameters()) {
    means.push_back(at::zeros_like(parameter));
  }
  for (int step = 0; step < 20; ++step) {
    set_gradients(ours->parameters(), step);
    set_gradients(theirs->parameters(), step);
    optimizer->step(0.001);
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < means.size(); ++i) {
      at::Tensor parameter = theirs->parameters()[i];
      const at::Tensor gradient = parameter.grad();
      parameter.mul_(parameter.dim() >= 2 ? 1 - 0.001 * 0.1 : 1);
      parameter.add_((means[i] * 0.9 + gradient * 0.1).sign(), -0.001);
      means[i] = means[i] * 0.99 + gradient * 0.01;
    }
  }
  expect_near(ours, theirs);
}

TEST(OptimizerParts, AParameterWithoutAGradientStaysAsItIs) {
  for (const auto kind : {OptimizerKind::AdamW, OptimizerKind::Sgd, OptimizerKind::Lion}) {
    const auto model = two_layers();
    const TrainerOptions options{.optimizer = kind};
    const auto optimizer = train::make_optimizer({*model, options}, options);
    set_gradients({model->parameters()[0]}, 0);
    const at::Tensor first = model->parameters()[0].clone(), last = model->parameters()[3].clone();
    optimizer->step(0.1);
    EXPECT_FALSE(model->parameters()[0].equal(first));
    EXPECT_TRUE(model->parameters()[3].equal(last));
    optimizer->zero_grad();
    EXPECT_FALSE(model->parameters()[0].grad().defined());
  }
}

TEST(OptimizerParts, ItsStateIsAllItRemembers) {
  for (const auto kind : {OptimizerKind::AdamW, OptimizerKind::Sgd, OptimizerKind::Lion}) {
    const auto first = two_layers(), second = two_layers();
    const TrainerOptions options{.optimizer = kind};
    const auto a = train::make_optimizer({*first, options}, options);
    const auto b = train::make_optimizer({*second, options}, options);
    set_gradients(first->parameters(), 0);
    a->step(0.1);
    for (size_t i = 0; i < a->state().size(); ++i) {
      EXPECT_EQ(a->state()[i].name, b->state()[i].name);
      b->state()[i].tensor.copy_(a->state()[i].tensor);
    }
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < first->parameters().size(); ++i) {
      second->parameters()[i].copy_(first->parameters()[i]);
    }
    set_gradients(first->parameters(), 1);
    set_gradients(second->parameters(), 1);
    a->step(0.1);
    b->step(0.1);
    for (size_t i = 0; i < first->parameters().size(); ++i) {
      EXPECT_TRUE(first->parameters()[i].equal(second->parameters()[i]));
    }
  }
}

TEST(BadStepRules, WhatIsNotFiniteIsLeftOutAndCounted) {
  train::BadSteps steps({.max_bad_steps = 2});
  EXPECT_TRUE(steps.accept(0, 1.5));
  EXPECT_FALSE(steps.accept(1, std::nan("")));
  EXPECT_FALSE(steps.accept(2, std::numeric_limits<double>::infinity()));
  EXPECT_THAT([&] { steps.accept(3, std::nan("")); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("step 3"), HasSubstr("lower train.lr"))));
  EXPECT_EQ(steps.num_all(), 3);
}

TEST(BadStepRules, StopSaysWhichStepAndWhatToDo) {
  train::BadSteps steps({.on_bad_step = BadStepRule::Stop});
  EXPECT_THAT([&] { steps.accept(7, std::nan("")); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("step 7"), HasSubstr("on_bad_step"))));
}

TEST(BadStepRules, ASpikeIsMeasuredByWhatWasUsualAndSurvivesACheckpoint) {
  const TrainerOptions options{.spike_factor = 5};
  train::BadSteps steps(options);
  for (int step = 0; step < 30; ++step) {
    EXPECT_TRUE(steps.accept(step, 1 + 0.01 * step)) << step;
  }
  train::BadSteps again(options);
  again.restore(steps.state());
  EXPECT_EQ(again.state(), steps.state()) << "bit for bit";
  EXPECT_FALSE(again.accept(30, 8));
  EXPECT_TRUE(again.accept(31, 2));
  EXPECT_THROW(again.restore("what"), FormatError);
}

TEST(Precisions, TheScaleFollowsOverflows) {
  train::LossScale scale(Precision::Float16);
  EXPECT_EQ(scale.value(), 65536);
  scale.update(false);
  EXPECT_EQ(scale.value(), 32768);
  for (int i = 0; i < 2000; ++i) {
    scale.update(true);
  }
  EXPECT_EQ(scale.value(), 65536);
  train::LossScale again(Precision::Float16);
  again.restore(scale.state());
  EXPECT_EQ(again.state(), scale.state());
  EXPECT_THROW(again.restore("x"), FormatError);
  train::LossScale none(Precision::BFloat16);
  none.update(false);
  EXPECT_EQ(none.value(), 1);
}

TEST(Precisions, AutocastLastsAsLongAsItLives) {
  const at::Tensor a = at::ones({2, 2});
  {
    const train::Autocast autocast(Precision::BFloat16);
    EXPECT_EQ(at::matmul(a, a).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(at::matmul(a, a).scalar_type(), at::kFloat);
}

TEST(Averages, FollowTheParametersAndChangePlacesWithThem) {
  const auto model = two_layers();
  train::ParameterAverage average(*model, 0.75);
  const at::Tensor first = model->parameters()[0].detach().clone();
  {
    const at::NoGradGuard no_grad;
    model->parameters()[0].add_(4);
  }
  average.update();
  {
    const train::ParameterAverage::Swap swap(average);
    EXPECT_TRUE(model->parameters()[0].allclose(first + 1));
  }
  EXPECT_TRUE(model->parameters()[0].equal(first + 4));
}

// With tensors of several sizes and types, the largest in the middle.
TEST(ParameterAverages, ASwapChangesPlacesAndBackWithoutNewMemory) {
  struct Mixed : torch::nn::Module {
    Mixed() {
      register_parameter("a", at::arange(6, at::kFloat).reshape({2, 3}));
      register_parameter("b", at::arange(20, at::kDouble).reshape({4, 5}).t());
      register_parameter("c", at::arange(3, at::kFloat));
    }
  } module;
  train::ParameterAverage average(module, 0.5);
  std::vector<at::Tensor> first, last;
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    first.push_back(parameter.detach().clone());
    parameter.add_(8);
    last.push_back(parameter.detach().clone());
  }
  average.update();
  {
    const train::ParameterAverage::Swap swap(average);
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(module.parameters()[i].allclose(first[i] + 4)) << i;
      EXPECT_TRUE(average.state()[i].tensor.equal(last[i])) << i;
    }
  }
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(module.parameters()[i].equal(last[i])) << i;
    EXPECT_TRUE(average.state()[i].tensor.allclose(first[i] + 4)) << i;
  }
}

// What fails then has failed before; the error on its way is what counts.
TEST(ParameterAverages, AFailureToSwapBackIsLoggedAndNotThrown) {
  const auto model = two_layers();
  train::ParameterAverage average(*model, 0.5);
  std::vector<std::string> lines;
  log::set_sink([&](log::Level, std::string_view line) { lines.emplace_back(line); });
  EXPECT_THROW(
      {
        const train::ParameterAverage::Swap swap(average);
        average.state()[2].tensor.resize_({0});  // no copy fits any more
        throw std::runtime_error("of the evaluation");
      },
      std::runtime_error);
  log::set_sink({});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("the parameters stay in the place of their average"));
}

TEST(DataOrders, EverySampleIsReadOnceWhateverTheRanks) {
  const TrainerOptions options{.batch_size = 16, .accumulate = 2};
  std::vector<std::vector<int64_t>> steps;  // of one rank: the global batches
  for (const int ranks : {1, 2, 4}) {
    std::vector<std::multiset<int64_t>> batches(6);
    for (int rank = 0; rank < ranks; ++rank) {
      const train::Pieces pieces = train::cut_into_pieces(options, 4, rank, ranks);
      EXPECT_EQ(pieces.num_all, 8);
      EXPECT_EQ(pieces.batch_size, 2);
      const train::DataOrder order(100, 1, pieces);
      EXPECT_EQ(order.steps_per_epoch(), 6);
      const auto indices = order.indices(3, 0);
      const auto per_step = static_cast<size_t>(pieces.num_local) * 2;
      ASSERT_EQ(indices.size(), 6 * per_step);
      for (size_t i = 0; i < indices.size(); ++i) {
        batches[i / per_step].insert(indices[i]);
      }
      const auto rest = order.indices(3, 4);  // after a resume
      EXPECT_TRUE(
          std::equal(rest.begin(), rest.end(), indices.begin() + 4 * static_cast<long>(per_step)));
    }
    std::set<int64_t> all;
    for (size_t step = 0; step < batches.size(); ++step) {
      all.insert(batches[step].begin(), batches[step].end());
      const std::vector<int64_t> batch(batches[step].begin(), batches[step].end());
      if (ranks == 1) {
        steps.push_back(batch);
      } else {
        EXPECT_EQ(batch, steps[step]) << ranks << " ranks, step " << step;
      }
    }
    EXPECT_EQ(all.size(), 96u);
  }
}

TEST(DataOrders, WhatCannotBeSplitIsRefused) {
  EXPECT_THAT([] { train::cut_into_pieces({.batch_size = 40}, 3, 0, 3); },
              ThrowsMessage<UsageError>(HasSubstr("over 3 ranks; use 39 or 42")));
  EXPECT_THAT([] { train::cut_into_pieces({.batch_size = 40}, 64, 0, 64); },
              ThrowsMessage<UsageError>(HasSubstr("over 64 ranks; use 64")));
  EXPECT_THAT([] { train::cut_into_pieces({.batch_size = 12, .accumulate = 5}, 4, 0, 2); },
              ThrowsMessage<UsageError>(HasSubstr("4 shards of 5 pieces")));
  for (const int shards : {6, 4}) {
    EXPECT_THAT([&] { train::cut_into_pieces({.batch_size = 24}, shards, 0, 3); },
                ThrowsMessage<UsageError>(HasSubstr("cannot be dealt to 3 ranks")));
  }
  EXPECT_THAT([] { train::DataOrder(7, 1, {.num_all = 4, .batch_size = 2}); },
              ThrowsMessage<UsageError>(HasSubstr("more than the 7 samples")));
}

}  // namespace
}  // namespace lockstep

// Parameter groups and optimizers of one's own, without a training loop around them.
#include "train/step/own_optimizer.h"

#include <cmath>
#include <set>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim.h>

#include <lockstep/base/error.h>

#include "support/refusal.h"
#include "train/step/average.h"

namespace lockstep {
namespace {

using test::refusal;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

torch::nn::Sequential small_model() {
  torch::nn::Sequential model(torch::nn::Linear(5, 7), torch::nn::Linear(7, 3));
  const at::NoGradGuard no_grad;
  double seed = 1;
  for (at::Tensor& parameter : model->parameters()) {
    const at::Tensor waves = at::arange(parameter.numel(), at::kFloat).mul(0.37 * seed++).sin();
    parameter.copy_(waves.reshape(parameter.sizes()));
  }
  return model;
}

// Gradients that follow from the parameters and the step. The last parameter never has one.
void give_gradients(const torch::nn::Sequential& model, int step) {
  const std::vector<at::Tensor> parameters = model->parameters();
  for (size_t i = 0; i + 1 < parameters.size(); ++i) {
    parameters[i].mutable_grad() = parameters[i].detach().mul(0.5).add(0.1 * (step + 1)).cos();
  }
}

void expect_equal(const torch::nn::Sequential& a, const torch::nn::Sequential& b,
                  const std::string& what) {
  for (size_t i = 0; i < a->parameters().size(); ++i) {
    EXPECT_TRUE(a->parameters()[i].equal(b->parameters()[i])) << what << ", parameter " << i;
  }
}

struct Case {
  std::string name;
  OptimizerFactory make;
};

template <typename Optimizer, typename Options>
Case two_groups(std::string name, Options options) {
  return {std::move(name), [options](torch::nn::Module& module) {
            const auto parameters = module.parameters();
            Options other = options;
            other.lr(options.lr() * 0.3).weight_decay(0.05);
            std::vector<torch::optim::OptimizerParamGroup> groups;
            groups.emplace_back(std::vector<at::Tensor>{parameters[0], parameters[3]},
                                std::make_unique<Options>(options));
            groups.emplace_back(std::vector<at::Tensor>{parameters[1], parameters[2]},
                                std::make_unique<Options>(other));
            return std::make_unique<Optimizer>(groups, options);
          }};
}

// Every kind, with all that it may remember.
std::vector<Case> all_cases() {
  using namespace torch::optim;
  return {
      two_groups<SGD>("SGD", SGDOptions(0.1)),
      two_groups<SGD>("SGD that is damped", SGDOptions(0.1).momentum(0.8).dampening(0.4)),
      two_groups<SGD>("SGD, Nesterov", SGDOptions(0.1).momentum(0.9).nesterov(true)),
      two_groups<Adam>("Adam", AdamOptions(0.02)),
      two_groups<Adam>("Adam, AMSGrad", AdamOptions(0.02).amsgrad(true)),
      two_groups<AdamW>("AdamW", AdamWOptions(0.02)),
      two_groups<AdamW>("AdamW, AMSGrad", AdamWOptions(0.02).amsgrad(true)),
      two_groups<RMSprop>("RMSprop", RMSpropOptions(0.02)),
      two_groups<RMSprop>("RMSprop, centred", RMSpropOptions(0.02).momentum(0.5).centered(true)),
      two_groups<Adagrad>("Adagrad",
                          AdagradOptions(0.1).lr_decay(0.1).initial_accumulator_value(0.2))};
}

std::unique_ptr<train::Optimizer> own(torch::nn::Sequential model, OptimizerFactory make,
                                      TrainerOptions options = {}) {
  options.make_optimizer = std::move(make);
  Group group = make_single_group();
  return train::make_own_optimizer(*model, options, group);
}

TEST(OwnOptimizer, MakesTheStepsOfLibtorchsWithTheScheduledRates) {
  for (const Case& one : all_cases()) {
    auto ours = small_model(), theirs = small_model();
    const auto optimizer = own(ours, one.make);
    const auto peer = one.make(*theirs);
    for (int step = 0; step < 6; ++step) {
      const double share = 1 - 0.125 * step;  // exact, so that the products are
      give_gradients(ours, step);
      give_gradients(theirs, step);
      optimizer->step(share);
      for (auto& group : peer->param_groups()) {
        const double first = &group == &peer->param_groups()[0] ? 1 : 0.3;
        const double lr = peer->defaults().get_lr();
        group.options().set_lr(lr * first * share);
      }
      peer->step();
      EXPECT_DOUBLE_EQ(optimizer->shown_lr(share), peer->param_groups()[0].options().get_lr());
    }
    expect_equal(ours, theirs, one.name);
    EXPECT_FALSE(ours->parameters()[0].equal(small_model()->parameters()[0])) << "nothing moved";
  }
}

TEST(OwnOptimizer, ItsStateIsAllItRemembers) {
  for (const Case& one : all_cases()) {
    for (const int steps_before : {0, 1, 4}) {
      const auto first = small_model(), second = small_model();
      const auto a = own(first, one.make), b = own(second, one.make);
      for (int step = 0; step < steps_before; ++step) {
        give_gradients(first, step);
        a->step(1);
      }
      const auto saved = a->state(), targets = b->begin_restore();
      ASSERT_EQ(saved.size(), targets.size());
      for (size_t i = 0; i < saved.size(); ++i) {
        ASSERT_EQ(saved[i].name, targets[i].name);
        targets[i].tensor.copy_(saved[i].tensor);
      }
      b->end_restore();
      {
        const at::NoGradGuard no_grad;
        for (size_t i = 0; i < first->parameters().size(); ++i) {
          second->parameters()[i].copy_(first->parameters()[i]);
        }
      }
      // From here on the last parameter, which had no state, has gradients too.
      for (int step = steps_before; step < steps_before + 3; ++step) {
        for (const auto& model : {first, second}) {
          give_gradients(model, step);
          model->parameters()[3].mutable_grad() = model->parameters()[3].detach().add(step).sin();
        }
        a->step(0.5);
        b->step(0.5);
      }
      expect_equal(first, second, one.name + " after " + std::to_string(steps_before) + " steps");
    }
  }
}

TEST(OwnOptimizer, ItsStateLiesUnderTheNamesOfTheParameters) {
  const auto model = small_model();
  const auto optimizer = own(model, [](torch::nn::Module& module) {
    return std::make_unique<torch::optim::RMSprop>(module.parameters(), 0.1);
  });
  std::vector<std::string> names;
  for (const NamedTensor& item : optimizer->state()) {
    names.push_back(item.name);
  }
  EXPECT_THAT(names, ElementsAre("steps", "square_avg.0.weight", "square_avg.0.bias",
                                 "square_avg.1.weight", "square_avg.1.bias"));
}

TEST(OwnOptimizer, TellsApartWhatCannotGoOnFromEachOther) {
  const auto lines = [](const OptimizerFactory& make) {
    const auto model = small_model();
    const auto optimizer = own(model, make);
    optimizer->step(0.25);
    return optimizer->description();
  };
  std::set<std::vector<std::string>> all;
  for (const Case& one : all_cases()) {
    const auto of_case = lines(one.make);
    EXPECT_TRUE(all.insert(of_case).second) << one.name;
    EXPECT_EQ(of_case, lines(one.make)) << "a step changes the rates, and not the line";
    EXPECT_THAT(of_case, testing::Contains("1.bias is in group 0")) << one.name;
  }
}

// What is given to make_optimizer, and the parts of what it says when that is refused.
void expect_refusal(OptimizerFactory make, const char* reason, TrainerOptions options = {}) {
  EXPECT_THAT(refusal([&] { own(small_model(), make, options); }), HasSubstr(reason));
}

class DerivedSgd : public torch::optim::SGD {
 public:
  using SGD::SGD;
};

TEST(OwnOptimizer, RefusesWhatItCannotTrainWith) {
  expect_refusal([](torch::nn::Module&) { return nullptr; }, "returned no optimizer");
  expect_refusal(
      [](torch::nn::Module& module) {
        return std::make_unique<torch::optim::LBFGS>(module.parameters());
      },
      "made an LBFGS");
  expect_refusal(
      [](torch::nn::Module&) {
        return std::make_unique<torch::optim::SGD>(small_model()->parameters(), 0.1);
      },
      "parameter of shape [7, 5] in group 0 of the optimizer is none of the module's");
  expect_refusal(
      [](torch::nn::Module& module) {
        std::vector<torch::optim::OptimizerParamGroup> groups = {
            module.parameters(), std::vector<at::Tensor>{module.parameters()[2]}};
        return std::make_unique<torch::optim::SGD>(groups, 0.1);
      },
      "1.weight is in two groups of the optimizer, the second time in group 1");
  expect_refusal(
      [](torch::nn::Module&) {
        return std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>(), 0.1);
      },
      "no parameters");
  expect_refusal(
      [](torch::nn::Module& module) {
        return std::make_unique<torch::optim::SGD>(module.parameters(), -1);
      },
      "Invalid learning rate");
}

TEST(OwnOptimizer, OfAnotherClassIsAcceptedWithoutCheckpoints) {
  const OptimizerFactory make = [](torch::nn::Module& module) {
    return std::make_unique<DerivedSgd>(module.parameters(), 0.1);
  };
  expect_refusal(make, "SGD, Adam, AdamW, RMSprop, Adagrad", {.checkpoint_dir = "somewhere"});
  const auto model = small_model();
  const auto optimizer = own(model, make);
  EXPECT_THAT(optimizer->state(), IsEmpty());
  give_gradients(model, 0);
  optimizer->step(1);
  EXPECT_FALSE(model->parameters()[0].equal(small_model()->parameters()[0]));
}

TEST(OwnOptimizer, GradientsOfWhatItLeavesOutAreClearedToo) {
  const auto model = small_model();
  const auto optimizer = own(model, [](torch::nn::Module& module) {
    return std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{module.parameters()[0]},
                                               0.1);
  });
  give_gradients(model, 0);
  const at::Tensor gradient = model->parameters()[1].grad().clone();
  optimizer->scale_gradients(0.5);
  EXPECT_TRUE(model->parameters()[1].grad().equal(gradient * 0.5));
  optimizer->step(1);
  EXPECT_TRUE(model->parameters()[1].equal(small_model()->parameters()[1]));
  optimizer->zero_grad();
  EXPECT_FALSE(model->parameters()[1].grad().defined());
}

// What each group does, against libtorch's optimizer with these settings for each parameter.
TEST(ParameterGroups, HaveTheirOwnRateAndDecay) {
  const auto ours = small_model(), theirs = small_model();
  const TrainerOptions options{
      .optimizer = OptimizerKind::Sgd,
      .weight_decay = 0.1,
      .momentum = 0.9,
      .groups = {{.name = "first", .pattern = "^0\\.", .lr_scale = 0.5},
                 {.name = "biases",
                  .takes = [](const std::string&, const at::Tensor& x) { return x.dim() == 1; },
                  .weight_decay = 0.3}}};
  const auto optimizer = train::make_optimizer({*ours, options}, options);
  const auto group = [&](size_t i, double lr, double weight_decay) {
    return torch::optim::OptimizerParamGroup(
        {theirs->parameters()[i]},
        std::make_unique<torch::optim::SGDOptions>(
            torch::optim::SGDOptions(lr).momentum(0.9).weight_decay(weight_decay)));
  };
  torch::optim::SGD peer(
      {group(0, 0.05, 0.1), group(1, 0.05, 0), group(2, 0.1, 0.1), group(3, 0.1, 0.3)},
      torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 8; ++step) {
    for (const auto& model : {ours, theirs}) {
      give_gradients(model, step);
      model->parameters()[3].mutable_grad() = model->parameters()[3].detach().add(step).sin();
    }
    optimizer->step(0.1);
    peer.step();
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(ours->parameters()[i].allclose(theirs->parameters()[i], 1e-6, 1e-7)) << i;
  }
}

TEST(ParameterGroups, OfOneScaleAreTheSameBitsAsNone) {
  for (const auto kind : {OptimizerKind::AdamW, OptimizerKind::Sgd, OptimizerKind::Lion}) {
    const auto plain = small_model(), grouped = small_model();
    const TrainerOptions options{.optimizer = kind};
    TrainerOptions other = options;
    other.groups = {{.name = "weights", .pattern = "weight"}};
    const auto a = train::make_optimizer({*plain, options}, options);
    const auto b = train::make_optimizer({*grouped, other}, other);
    for (int step = 0; step < 5; ++step) {
      give_gradients(plain, step);
      give_gradients(grouped, step);
      a->step(0.1);
      b->step(0.1);
    }
    expect_equal(plain, grouped, a->description().front());
    EXPECT_NE(a->description(), b->description());
  }
}

TEST(ParameterGroups, ThatAreFrozenAreNotTrained) {
  const auto model = small_model();
  const TrainerOptions options{.groups = {{.name = "first", .pattern = "^0", .is_frozen = true}}};
  const train::AssignedParameters parameters(*model, options);
  parameters.freeze();
  EXPECT_FALSE(model->parameters()[1].requires_grad());
  EXPECT_TRUE(model->parameters()[2].requires_grad());
  for (const NamedTensor& item : train::make_optimizer(parameters, options)->state()) {
    EXPECT_THAT(item.name, testing::Not(HasSubstr(".0."))) << "no memory is spent on it";
  }
  EXPECT_THAT(parameters.description(),
              ElementsAre("group \"first\" is frozen", "0.weight is in group \"first\"",
                          "0.bias is in group \"first\"", "1.weight is in no group",
                          "1.bias is in no group"));
}

TEST(ParameterGroups, ThatCannotBeAreRefused) {
  const auto refuses = [](std::vector<ParameterGroup> groups, const auto& matcher) {
    TrainerOptions options;
    options.groups = std::move(groups);
    EXPECT_THAT(refusal([&] {
                  train::make_optimizer({*small_model(), options}, options);
                }),
                matcher);
  };
  const auto all = [](const std::string&, const at::Tensor&) { return true; };
  refuses({{.pattern = "x"}}, HasSubstr("has no name"));
  refuses({{.name = "a"}}, HasSubstr("\"a\" has none of `pattern` and `takes`"));
  refuses({{.name = "a", .pattern = "w", .takes = all}}, HasSubstr("has both of"));
  refuses({{.name = "a", .pattern = "w("}}, HasSubstr("\"w(\" of the parameter group \"a\" is no"));
  refuses({{.name = "a", .pattern = "wieght"}},
          AllOf(HasSubstr("\"a\" (pattern \"wieght\") takes no parameter"),
                HasSubstr("the model has 0.weight, 0.bias, 1.weight, 1.bias")));
  refuses({{.name = "a", .takes = all}, {.name = "b", .pattern = "bias"}},
          HasSubstr("\"b\" (pattern \"bias\") takes no parameter that an earlier group"));
  refuses({{.name = "a", .pattern = "bias"}, {.name = "a", .pattern = "weight"}},
          HasSubstr("two parameter groups have the name \"a\""));
  refuses({{.name = "a", .pattern = "bias", .lr_scale = -1}}, HasSubstr("lr_scale = -1"));
  refuses({{.name = "a", .pattern = "bias", .lr_scale = std::nan("")}},
          HasSubstr("lr_scale = nan"));
  refuses({{.name = "a", .pattern = "bias", .weight_decay = 101}}, HasSubstr("weight_decay = 101"));
  refuses({{.name = "a", .pattern = "bias", .lr_scale = 0.5, .is_frozen = true}},
          HasSubstr("\"a\" is frozen, and lr_scale has no effect"));
  refuses({{.name = "a", .pattern = "bias", .weight_decay = 0, .is_frozen = true}},
          HasSubstr("\"a\" is frozen, and weight_decay has no effect"));
  refuses({{.name = "a", .takes = all, .is_frozen = true}}, HasSubstr("nothing to train"));
}

// One weight under two names, as an embedding and the layer that is tied to it.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    weight = register_parameter("weight", at::arange(6, at::kFloat).reshape({2, 3}));
    register_parameter("again", weight);
  }
  at::Tensor weight;
};

// By the example of parameter_group.h: module.parameters() has it twice.
TEST(OwnOptimizer, ATiedWeightIsUpdatedOnce) {
  const auto tied = std::make_shared<TiedImpl>();
  const at::Tensor before = tied->weight.detach().clone();
  ASSERT_EQ(tied->parameters().size(), 2u);
  Group group = make_single_group();
  TrainerOptions options;
  options.make_optimizer = [](torch::nn::Module& module) {
    return std::make_unique<torch::optim::SGD>(module.parameters(),
                                               torch::optim::SGDOptions(0.5).momentum(0.9));
  };
  const auto optimizer = train::make_own_optimizer(*tied, options, group);
  tied->weight.mutable_grad() = at::full({2, 3}, 0.25);
  optimizer->step(1);
  EXPECT_TRUE(tied->weight.equal(before - 0.125));
  std::vector<std::string> names;
  for (const NamedTensor& item : optimizer->state()) {
    names.push_back(item.name);
  }
  EXPECT_THAT(names, ElementsAre("steps", "momentum_buffer.weight"));
}

TEST(ParameterGroups, ATiedWeightIsUpdatedOnce) {
  TiedImpl tied, single;
  const TrainerOptions options{.optimizer = OptimizerKind::Sgd, .weight_decay = 0, .momentum = 0};
  const at::Tensor before = tied.weight.detach().clone();
  tied.weight.mutable_grad() = at::full({2, 3}, 0.25);
  train::make_optimizer({tied, options}, options)->step(1);
  EXPECT_TRUE(tied.weight.equal(before - 0.25));
  train::ParameterAverage average(tied, 0.5);
  {
    const at::NoGradGuard no_grad;
    tied.weight.mul_(3);
  }
  average.update();
  const at::Tensor trained = tied.weight.detach().clone();
  { const train::ParameterAverage::Swap swap(average); }
  EXPECT_TRUE(tied.weight.equal(trained)) << "what was trained is back after an evaluation";
}

}  // namespace
}  // namespace lockstep

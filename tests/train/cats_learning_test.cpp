// That the task is a real one: a linear model cannot do it, random labels teach nothing, and the
// network learns it whatever the seeds. Shapes: N pictures, P pixels of a picture, all channels.
#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/optim/lbfgs.h>

#include <lockstep/comm/group.h>

#include "data/cat_pictures.h"
#include "train/recipes/recipe.h"

namespace lockstep {
namespace {

// Held-out accuracy of logistic regression on the raw pixels, trained until L-BFGS finds nothing
// better.
double logistic_accuracy(const TensorDataset& train, const TensorDataset& held_out, double l2) {
  const at::Tensor mean_P = train.input.flatten(1).mean(0).to(at::kDouble);
  const at::Tensor train_NP = train.input.flatten(1).to(at::kDouble) - mean_P;
  const at::Tensor held_out_NP = held_out.input.flatten(1).to(at::kDouble) - mean_P;
  const at::Tensor label_N = train.target.to(at::kDouble);
  at::Tensor weight_P = at::zeros({train_NP.size(1)}, at::kDouble).requires_grad_();
  at::Tensor bias = at::zeros({1}, at::kDouble).requires_grad_();
  torch::optim::LBFGS optimizer(
      {weight_P, bias}, torch::optim::LBFGSOptions(1).max_iter(500).line_search_fn("strong_wolfe"));
  optimizer.step([&] {
    optimizer.zero_grad();
    const at::Tensor loss =
        at::binary_cross_entropy_with_logits(train_NP.mv(weight_P) + bias, label_N) +
        l2 * weight_P.dot(weight_P);
    loss.backward();
    return loss;
  });
  const at::Tensor says_cat_N = (held_out_NP.mv(weight_P) + bias).gt(0).to(at::kLong);
  return says_cat_N.eq(held_out.target).to(at::kDouble).mean().item<double>();
}

TEST(CatsLearning, ALinearModelOfThePixelsFails) {
  double best = 0;
  for (const uint64_t seed : {1u, 11u}) {
    const TensorDataset train = data::draw_cat_pictures({.num_pictures = 400, .seed = seed});
    const TensorDataset held_out = data::draw_cat_pictures({.num_pictures = 400, .seed = seed + 1});
    for (const double l2 : {1e-4, 1e-3, 1e-2, 1e-1}) {
      best = std::max(best, logistic_accuracy(train, held_out, l2));
    }
  }
  RecordProperty("best_accuracy", std::to_string(best));
  EXPECT_LE(best, 0.85);
}

TrainResult train(const std::string& settings, const TrainWatcher& watcher = {}) {
  base::Config config = base::Config::from_text("recipe = \"cats\"\n" + settings);
  const auto recipe = train::read_recipe(config);
  Group group = make_single_group();
  train::Ingredients made = recipe->make(group);
  return Trainer(*made.task, made.data, group, recipe->options(), watcher).run();
}

TEST(CatsLearning, RandomLabelsTeachNothing) {
  EXPECT_LE(train("[data]\nshuffle_labels = true").evaluation->accuracy(), 0.60);
}

TEST(CatsLearning, TheNetworkLearnsWhateverTheSeeds) {
  for (const int seed : {1, 11, 21}) {
    const TrainResult result =
        train(fmt::format("[model]\nseed = {0}\n[data]\nseed = {0}\nheld_out_seed = {1}\n"
                          "[train]\nseed = {0}",
                          seed, seed + 1));
    EXPECT_GE(result.evaluation->accuracy(), 0.97) << "seed " << seed;
    EXPECT_GE(result.last.train_accuracy, 0.95) << "seed " << seed;
    EXPECT_EQ(result.evaluation->num_counted, 400);
  }
}

TEST(CatsLearning, TheSameConfigGivesTheSameBits) {
  const std::string config =
      "[data]\nnum_pictures = 50\nheld_out_pictures = 7\n[train]\nepochs = 2\n";
  const TrainResult first = train(config);
  const TrainResult again = train(config);
  EXPECT_EQ(first.parameter_hashes, again.parameter_hashes);
  EXPECT_EQ(first.last.loss, again.last.loss);
  EXPECT_NE(train(config + "seed = 2").parameter_hashes, first.parameter_hashes);
}

TEST(CatsLearning, EveryOptimizerLearns) {
  for (const char* optimizer : {"\"sgd\"\nlr = 0.01", "\"lion\"\nlr = 0.0003"}) {
    double first_loss = 0;
    const TrainWatcher watcher{.on_step = [&](const StepReport& report) {
      first_loss = report.epoch == 0 ? report.loss : first_loss;
    }};
    const TrainResult result = train(
        fmt::format("[data]\nnum_pictures = 40\n[train]\nepochs = 20\noptimizer = {}", optimizer),
        watcher);
    EXPECT_LT(result.last.loss, first_loss) << optimizer;
  }
}

}  // namespace
}  // namespace lockstep

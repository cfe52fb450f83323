// That the task is a real one: a linear model cannot do it, random labels teach nothing, and the
// network learns it whatever the seeds. Shapes: N pictures, P pixels of a picture, all channels.
#include <algorithm>

#include <gtest/gtest.h>
#include <torch/optim/lbfgs.h>

#include <lockstep/comm/group.h>

#include "data/cat_pictures.h"
#include "train/cats_job.h"

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
    const TensorDataset train = draw_cat_pictures({.num_pictures = 400, .seed = seed});
    const TensorDataset held_out = draw_cat_pictures({.num_pictures = 400, .seed = seed + 1});
    for (const double l2 : {1e-4, 1e-3, 1e-2, 1e-1}) {
      best = std::max(best, logistic_accuracy(train, held_out, l2));
    }
  }
  RecordProperty("best_accuracy", std::to_string(best));
  EXPECT_LE(best, 0.85);
}

TEST(CatsLearning, RandomLabelsTeachNothing) {
  const CatsResult result = train_cats(CatsConfig{.shuffle_labels = true}, make_single_group());
  EXPECT_LE(result.last.held_out_accuracy, 0.60);
}

TEST(CatsLearning, TheNetworkLearnsWhateverTheSeeds) {
  for (const int64_t seed : {1, 11, 21}) {
    const CatsConfig config{
        .model_seed = seed, .data_seed = seed, .held_out_seed = seed + 1, .seed = seed};
    const CatsResult result = train_cats(config, make_single_group());
    EXPECT_GE(result.last.held_out_accuracy, 0.95) << "seed " << seed;
    EXPECT_GE(result.last.train_accuracy, 0.95) << "seed " << seed;
    EXPECT_TRUE(result.same_bits());
  }
}

TEST(CatsLearning, TheSameConfigGivesTheSameBits) {
  const CatsConfig config{.num_pictures = 50, .held_out_pictures = 7, .epochs = 2};
  std::vector<int64_t> epochs;
  const CatsWatcher watcher{.on_epoch = [&](const EpochReport& r) { epochs.push_back(r.epoch); }};
  const CatsResult first = train_cats(config, make_single_group(), watcher);
  const CatsResult again = train_cats(config, make_single_group());
  EXPECT_EQ(first.parameter_hashes, again.parameter_hashes);
  EXPECT_EQ(first.last.loss, again.last.loss);
  EXPECT_EQ(epochs, (std::vector<int64_t>{1, 2}));
  CatsConfig other = config;
  other.seed = 2;
  EXPECT_NE(train_cats(other, make_single_group()).parameter_hashes, first.parameter_hashes);
}

TEST(CatsLearning, SgdLearnsToo) {
  const CatsConfig config{.num_pictures = 40, .epochs = 20, .optimizer = "sgd", .lr = 0.01};
  double first_loss = 0;
  const CatsWatcher watcher{.on_epoch = [&](const EpochReport& report) {
    first_loss = report.epoch == 1 ? report.loss : first_loss;
  }};
  EXPECT_LT(train_cats(config, make_single_group(), watcher).last.loss, first_loss);
}

}  // namespace
}  // namespace lockstep

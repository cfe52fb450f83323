// The twins of the kernels against ATen and its autograd, in float64 where it matters: they are
// what the kernels on a GPU are compared with.

#include "device/twins/twins.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>

#include "kernel_runs.h"

namespace lockstep::device {
namespace {

using testing_support::DropoutOf;
using testing_support::kEpsilon;
using testing_support::KernelRuns;

const KernelRuns kTwins(cpu_kernels(), at::kCPU);

// A leaf in float64.
at::Tensor leaf(const at::Tensor& tensor) {
  return tensor.to(at::kDouble).clone().set_requires_grad(true);
}

double worst_of(const at::Tensor& have, const at::Tensor& want) {
  return (have.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
}

// 0 where an element is dropped, and what it is multiplied by elsewhere.
at::Tensor mask_of(const DropoutOf& of, at::IntArrayRef sizes) {
  const uint64_t state[2] = {static_cast<uint64_t>(of.seed), static_cast<uint64_t>(of.offset)};
  const LockstepDropout dropout{static_cast<float>(of.probability), of.site, state};
  const at::Tensor mask = at::empty(sizes);
  for (int64_t i = 0; i < mask.numel(); ++i) {
    mask.data_ptr<float>()[i] = dropped(dropout, i, 1.0f);
  }
  return mask;
}

// Known answers of Random123's kat_vectors.
TEST(Philox, GivesTheKnownAnswers) {
  const PhiloxWords zeros = philox({{0, 0, 0, 0}}, 0, 0);
  const uint32_t of_zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  const uint32_t all = 0xffffffff;
  const PhiloxWords ones = philox({{all, all, all, all}}, all, all);
  const uint32_t of_ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  const PhiloxWords pi =
      philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0);
  const uint32_t of_pi[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(zeros.words[i], of_zeros[i]);
    EXPECT_EQ(ones.words[i], of_ones[i]);
    EXPECT_EQ(pi.words[i], of_pi[i]);
  }
}

TEST(Dropout, DropsAsOftenAsAskedAndDependsOnAllOfItsState) {
  const DropoutOf of{.probability = 0.1};
  const at::Tensor mask = mask_of(of, {200'000});
  const double kept = (mask != 0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(kept, 0.9, 0.003);
  EXPECT_NEAR(mask.mean().item<double>(), 1.0, 0.004) << "the expectation stays";
  for (const DropoutOf& other :
       {DropoutOf{.probability = 0.1, .seed = 4}, DropoutOf{.probability = 0.1, .offset = 78},
        DropoutOf{.probability = 0.1, .offset = 77 + (int64_t{1} << 32)},
        DropoutOf{.probability = 0.1, .site = 6}}) {
    const double alike = (mask == mask_of(other, {200'000})).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(alike, 0.82, 0.01) << "independent";
  }
}

KernelRuns::NormInput norm_input(int64_t rows, int64_t columns, double probability) {
  return {.x = at::randn({rows, columns}) + 0.5,
          .branch = at::randn({rows, columns}),
          .weight = at::rand({columns}) + 0.5,
          .bias = at::randn({columns}),
          .dropout = {.probability = probability}};
}

TEST(NormTwin, IsLayerNormOfTheSum) {
  at::manual_seed(1);
  for (const double probability : {0.0, 0.3}) {
    const KernelRuns::NormInput input = norm_input(5, 13, probability);
    const KernelRuns::Norm forward = kTwins.norm_forward(input);
    const at::Tensor mask = mask_of(input.dropout, input.x.sizes()).to(at::kDouble);
    const at::Tensor x = leaf(input.x);
    const at::Tensor branch = leaf(input.branch);
    const at::Tensor weight = leaf(input.weight);
    const at::Tensor bias = leaf(input.bias);
    const at::Tensor sum = x + branch * mask;
    const at::Tensor out = at::layer_norm(sum, {13}, weight, bias, kEpsilon);
    EXPECT_LT(worst_of(forward.sum, sum), 1e-6);
    EXPECT_LT(worst_of(forward.out, out), 1e-5);

    const at::Tensor grad_out = at::randn({5, 13});
    const at::Tensor grad_sum = at::randn({5, 13});
    const auto have =
        kTwins.norm_backward(input, forward, {.grad_out = grad_out, .grad_sum = grad_sum});
    const auto want = torch::autograd::grad({out, sum}, {x, branch, weight, bias},
                                            {grad_out.to(at::kDouble), grad_sum.to(at::kDouble)});
    EXPECT_LT(worst_of(have.x, want[0]), 1e-5);
    EXPECT_LT(worst_of(have.branch, want[1]), 1e-5);
    EXPECT_LT(worst_of(have.weight, want[2]), 1e-5);
    EXPECT_LT(worst_of(have.bias, want[3]), 1e-5);
    EXPECT_LT(worst_of(have.branch_bias, want[1].sum(0)), 1e-5);
    const auto more = kTwins.norm_backward(
        input, forward, {.grad_out = grad_out, .grad_sum = grad_sum, .accumulate = true});
    EXPECT_LT(worst_of(more.weight, have.weight + 1), 1e-6);
  }
}

TEST(NormTwin, WithoutABranchNormsX) {
  at::manual_seed(2);
  KernelRuns::NormInput input = norm_input(3, 8, 0);
  input.branch = at::Tensor();
  const KernelRuns::Norm forward = kTwins.norm_forward(input);
  const at::Tensor out = at::layer_norm(input.x, {8}, input.weight, input.bias, kEpsilon);
  EXPECT_LT(worst_of(forward.out, out), 1e-5);
}

TEST(NormTwin, OfBfloat16RoundsWhatItStores) {
  at::manual_seed(3);
  KernelRuns::NormInput input = norm_input(4, 24, 0);
  input.x = input.x.to(at::kBFloat16);
  input.branch = input.branch.to(at::kBFloat16);
  const KernelRuns::Norm forward = kTwins.norm_forward(input);
  EXPECT_TRUE(forward.sum.equal(input.x + input.branch));
  // The statistics are those of the rounded sum.
  EXPECT_LT(worst_of(forward.mean, forward.sum.to(at::kDouble).mean(1)), 1e-6);
}

TEST(GeluTwin, IsGelu) {
  at::manual_seed(4);
  const at::Tensor x = at::randn({7, 9}) * 3;
  const at::Tensor grad_out = at::randn({7, 9});
  for (const auto& [form, name] :
       {std::pair(LOCKSTEP_GELU_ERF, "none"), std::pair(LOCKSTEP_GELU_TANH, "tanh")}) {
    const at::Tensor at_x = leaf(x);
    const at::Tensor out = at::gelu(at_x, name);
    EXPECT_LT(worst_of(kTwins.gelu_forward(x, form), out), 1e-6);
    const auto have = kTwins.gelu_backward(x, grad_out, form);
    const auto want = torch::autograd::grad({out}, {at_x}, {grad_out.to(at::kDouble)});
    EXPECT_LT(worst_of(have.x, want[0]), 1e-6);
    EXPECT_LT(worst_of(have.bias, want[0].sum(0)), 1e-5);
    EXPECT_LT(worst_of(kTwins.gelu_backward(x, grad_out, form, true).bias, have.bias + 1), 1e-6);
  }
}

TEST(CrossEntropyTwin, IsCrossEntropyOverThePaddedClasses) {
  at::manual_seed(5);
  const int64_t classes = 11;
  const at::Tensor logits = at::randn({6, 16}) * 4;
  const at::Tensor labels = at::tensor({3, 0, -100, 10, 7, 3}, at::kLong);
  const at::Tensor real = leaf(logits.narrow(1, 0, classes));
  const at::Tensor loss = at::cross_entropy_loss(real, labels);
  const auto have = kTwins.cross_entropy(logits, labels, {.classes = classes, .scale = 8});
  EXPECT_NEAR(have.result[0].item<double>(), loss.item<double>(), 1e-6);
  EXPECT_EQ(have.result[1].item<float>(), 5);
  EXPECT_EQ(have.losses[2].item<float>(), 0);
  const auto want = torch::autograd::grad({loss * 8}, {real});
  EXPECT_LT(worst_of(have.logits.narrow(1, 0, classes), want[0]), 1e-6);
  EXPECT_EQ(have.logits.narrow(1, classes, 5).abs().max().item<float>(), 0);
  const auto only = kTwins.cross_entropy(logits, labels, {.classes = classes, .gradient = false});
  EXPECT_TRUE(only.logits.equal(logits));
  EXPECT_TRUE(only.losses.equal(have.losses));
}

TEST(CrossEntropyTwin, MakesABadLabelVisible) {
  const at::Tensor logits = at::randn({2, 4});
  const auto have = kTwins.cross_entropy(logits, at::tensor({1, 4}, at::kLong), {.classes = 4});
  EXPECT_TRUE(std::isnan(have.losses[1].item<float>()));
  EXPECT_TRUE(std::isnan(have.result[0].item<float>()));
}

KernelRuns::EmbeddingInput embedding_input(double probability) {
  return {.ids = at::tensor({4, 1, 4, 0, 6, 1, 4, 2, 4}, at::kLong),
          .tokens = at::randn({7, 5}),
          .positions = at::randn({3, 5}),
          .segment_ids = at::tensor({0, 0, 1, 0, 1, 1, 1, 0, 0}, at::kLong),
          .segments = at::randn({2, 5}),
          .dropout = {.probability = probability}};
}

TEST(ScaleTwin, MultipliesAndLeavesTheRestUnlessTheFactorIsOne) {
  at::manual_seed(4);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({7}).to(type);
    EXPECT_TRUE(kTwins.scale(x, 0.3f).equal(x.to(at::kFloat).mul(0.3f).to(type)));
    EXPECT_TRUE(kTwins.scale(x, 1.0f).equal(x));
  }
}

TEST(EmbeddingTwin, AddsItsTables) {
  at::manual_seed(6);
  for (const double probability : {0.0, 0.4}) {
    const KernelRuns::EmbeddingInput input = embedding_input(probability);
    const at::Tensor tokens = leaf(input.tokens);
    const at::Tensor positions = leaf(input.positions);
    const at::Tensor mask = mask_of(input.dropout, {9, 5}).to(at::kDouble);
    const at::Tensor out =
        mask * (at::embedding(tokens, input.ids) + positions.repeat({3, 1}) +
                at::embedding(input.segments.to(at::kDouble), input.segment_ids));
    EXPECT_LT(worst_of(kTwins.embedding_forward(input), out), 1e-6);
    const at::Tensor grad_out = at::randn({9, 5});
    const auto want = torch::autograd::grad({out}, {tokens, positions}, {grad_out.to(at::kDouble)});
    const at::Tensor table = at::randn({7, 5});
    EXPECT_LT(worst_of(kTwins.embedding_backward(input, grad_out, table), want[0] + table), 1e-6);
    EXPECT_LT(worst_of(kTwins.position_backward(input, grad_out), want[1]), 1e-6);
  }
}

TEST(EmbeddingTwin, SortsStablyAndPutsUnknownIdsLast) {
  const auto sorted = kTwins.embedding_sort(at::tensor({5, 2, -1, 2, 9, 0, 5}, at::kLong), 9);
  EXPECT_TRUE(sorted.order.equal(at::tensor({5, 1, 3, 0, 6, 2, 4}, at::kInt)));
  EXPECT_TRUE(sorted.ids.equal(at::tensor({0, 2, 2, 5, 5, 9, 9}, at::kInt)));
}

TEST(EmbeddingTwin, MakesAnUnknownIdVisibleAndLeavesItOutOfTheGradient) {
  KernelRuns::EmbeddingInput input = embedding_input(0);
  input.ids[3] = 7;
  EXPECT_TRUE(kTwins.embedding_forward(input)[3].isnan().all().item<bool>());
  const at::Tensor table = at::zeros({7, 5});
  const at::Tensor after = kTwins.embedding_backward(input, at::ones({9, 5}), table);
  EXPECT_EQ(after.sum().item<float>(), 8 * 5);
}

KernelRuns::OptimizerInput optimizer_input() {
  KernelRuns::OptimizerInput input;
  for (const int64_t count : {5000, 3, 0}) {
    input.before.masters.push_back(at::randn({count}));
    input.before.first.push_back(at::zeros({count}));
    input.before.second.push_back(at::zeros({count}));
    input.before.copies.push_back(at::zeros({count}, at::kBFloat16));
    input.gradients.push_back(at::randn({count}));
  }
  input.decays = {0.1f, 0.3f, 0.2f};
  input.before.state.learning_rate = 1e-2f;
  input.before.state.grad_scale = 0.5f;
  input.before.state.max_norm = 3;
  return input;
}

// The parameters of optimizer_input() in float64, with the options of each.
template <typename Optimizer, typename Options>
std::vector<at::Tensor> updated_by(const KernelRuns::OptimizerInput& input, Options options,
                                   int steps) {
  std::vector<at::Tensor> parameters;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (size_t i = 0; i < input.gradients.size(); ++i) {
    parameters.push_back(leaf(input.before.masters[i]));
    auto own = std::make_unique<Options>(options);
    own->weight_decay(input.decays[i]);
    own->lr(options.lr() * (1.0 + static_cast<double>(i) / 4));
    groups.emplace_back(std::vector<at::Tensor>{parameters.back()}, std::move(own));
  }
  Optimizer optimizer(groups, options);
  for (int step = 0; step < steps; ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = input.gradients[i].to(at::kDouble) * 0.5;
    }
    torch::nn::utils::clip_grad_norm_(parameters, 3);
    optimizer.step();
  }
  return parameters;
}

void expect_updates(KernelRuns::OptimizerInput input, const std::vector<at::Tensor>& want,
                    int steps) {
  for (int step = 0; step < steps; ++step) {
    input.before = kTwins.optimizer_step(input);
  }
  EXPECT_EQ(input.before.state.step, steps);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_LT(worst_of(input.before.masters[i], want[i]), 2e-6) << i;
    EXPECT_TRUE(input.before.copies[i].equal(input.before.masters[i].to(at::kBFloat16)));
  }
}

TEST(OptimizerTwin, IsAdamW) {
  at::manual_seed(7);
  const KernelRuns::OptimizerInput input = optimizer_input();
  const auto options = torch::optim::AdamWOptions(1e-2).betas(std::make_tuple(0.9, 0.95)).eps(1e-8);
  expect_updates(input, updated_by<torch::optim::AdamW>(input, options, 3), 3);
}

TEST(OptimizerTwin, IsSgd) {
  at::manual_seed(8);
  KernelRuns::OptimizerInput input = optimizer_input();
  input.sgd = true;
  const auto dampened = torch::optim::SGDOptions(1e-2).momentum(0.9).dampening(0.25);
  expect_updates(input, updated_by<torch::optim::SGD>(input, dampened, 3), 3);
  input.nesterov = true;
  const auto nesterov = torch::optim::SGDOptions(1e-2).momentum(0.9).nesterov(true);
  expect_updates(input, updated_by<torch::optim::SGD>(input, nesterov, 3), 3);
  input.nesterov = false;
  input.before.first.assign(3, at::Tensor());
  expect_updates(input, updated_by<torch::optim::SGD>(input, torch::optim::SGDOptions(1e-2), 3), 3);
}

TEST(OptimizerTwin, ClippingOnlyShrinks) {
  at::manual_seed(9);
  KernelRuns::OptimizerInput input = optimizer_input();
  input.before.state.max_norm = 1e6f;
  const auto after = kTwins.optimizer_step(input);
  EXPECT_EQ(after.state.factor, 0.5f);
  EXPECT_GT(after.state.norm, 1);
}

TEST(OptimizerTwin, SkipsAStepThatIsNotFinite) {
  KernelRuns::OptimizerInput input = optimizer_input();
  input.gradients[0][7] = std::numeric_limits<float>::infinity();
  const auto after = kTwins.optimizer_step(input);
  EXPECT_EQ(after.state.skipped, 1);
  EXPECT_EQ(after.state.step, 0);
  EXPECT_TRUE(after.masters[0].equal(input.before.masters[0]));
  EXPECT_TRUE(after.first[1].equal(input.before.first[1]));
  input.gradients[0][7] = 0;
  input.before.state.skip = 1;
  EXPECT_TRUE(kTwins.optimizer_step(input).masters[0].equal(input.before.masters[0]));
}

TEST(OptimizerChunks, CoverEveryElementOnce) {
  std::vector<LockstepParameter> parameters(3);
  parameters[0].count = LOCKSTEP_CHUNK + 1;
  parameters[2].count = LOCKSTEP_CHUNK;
  const auto chunks = optimizer_chunks(parameters);
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_EQ(chunks[1].index, 1);
  EXPECT_EQ(chunks[2].parameter, 2);
  parameters[1].count = -1;
  EXPECT_THROW(optimizer_chunks(parameters), UsageError);
}

TEST(BatchNormTwin, IsBatchNormAddRelu) {
  at::manual_seed(9);
  for (const bool has_residual : {false, true}) {
    for (const bool relu : {false, true}) {
      const KernelRuns::BatchNormInput input{
          .x = at::randn({10, 6}) * 2 + 3,
          .residual = has_residual ? at::randn({10, 6}) : at::Tensor(),
          .weight = at::rand({6}) + 0.5,
          .bias = at::randn({6}),
          .running_mean = at::randn({6}),
          .running_var = at::rand({6}) + 1,
          .relu = relu};
      const at::Tensor x = leaf(input.x);
      const at::Tensor weight = leaf(input.weight);
      const at::Tensor bias = leaf(input.bias);
      const at::Tensor residual = leaf(has_residual ? input.residual : at::zeros({10, 6}));
      const at::Tensor running_mean = input.running_mean.to(at::kDouble);
      const at::Tensor running_var = input.running_var.to(at::kDouble);
      at::Tensor out =
          at::batch_norm(x, weight, bias, running_mean, running_var, true, 0.1, kEpsilon, false) +
          residual;
      out = relu ? out.relu() : out;
      const auto forward = kTwins.batch_norm_forward(input);
      EXPECT_LT(worst_of(forward.out, out), 1e-5);
      EXPECT_LT(worst_of(forward.running_mean, running_mean), 1e-6);
      EXPECT_LT(worst_of(forward.running_var, running_var), 1e-6);
      const at::Tensor grad_out = at::randn({10, 6});
      const auto have = kTwins.batch_norm_backward(input, forward, grad_out);
      const auto want =
          torch::autograd::grad({out}, {x, weight, bias, residual}, {grad_out.to(at::kDouble)});
      EXPECT_LT(worst_of(have.x, want[0]), 1e-5);
      EXPECT_LT(worst_of(have.weight, want[1]), 1e-5);
      EXPECT_LT(worst_of(have.bias, want[2]), 1e-5);
      if (has_residual) {
        EXPECT_LT(worst_of(have.residual, want[3]), 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::device

// The models with lockstep's functions, on their kernels' twins, and with libtorch's operators.

#include <map>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/batchnorm.h>

#include <lockstep/models/gpt2.h>
#include <lockstep/models/loss.h>

#include "fused_models.h"
#include "models/batch_norm.h"
#include "models/layers.h"

namespace lockstep {
namespace {

using device::FunctionsUse;
using device::UseFunctions;
using testing_support::difference_of;
using testing_support::kLanguageModels;
using testing_support::kPictureModels;
using testing_support::StepDifference;
using testing_support::StepResult;
using testing_support::take_step;

class FusedModel : public testing::TestWithParam<const char*> {};
class FusedLanguageModel : public FusedModel {};

TEST_P(FusedModel, TakesTheStepOfItsOperators) {
  const StepResult fused = take_step(GetParam(), {.use = FunctionsUse::Everywhere});
  const StepResult plain = take_step(GetParam(), {.use = FunctionsUse::WhereFast});
  const StepDifference difference = difference_of(fused, plain);
  EXPECT_LT(difference.loss, 2e-6) << fused.loss << " and " << plain.loss;
  EXPECT_LT(difference.gradient, 5e-5) << difference.where;
  EXPECT_LT(difference.buffer, 1e-5) << difference.where;
  EXPECT_LT(difference.parameter, 1e-5) << difference.where;
}

TEST_P(FusedModel, TakesTheStepOfItsOperatorsInBfloat16) {
  const StepResult exact = take_step(GetParam(), {});
  const StepResult fused =
      take_step(GetParam(), {.use = FunctionsUse::Everywhere, .bfloat16 = true});
  const StepResult plain = take_step(GetParam(), {.bfloat16 = true});
  const StepDifference of_fused = difference_of(fused, exact);
  const StepDifference of_plain = difference_of(plain, exact);
  // Not further from float32 than bfloat16 takes libtorch's operators.
  EXPECT_LT(of_fused.loss, 3 * of_plain.loss + 0.02);
  EXPECT_LT(of_fused.gradient, 3 * of_plain.gradient + 0.05) << of_fused.where;
  EXPECT_LT(of_fused.buffer, 3 * of_plain.buffer + 0.02) << of_fused.where;
}

TEST_P(FusedLanguageModel, DropsByTheGeneratorsSeed) {
  const auto with = [](int64_t seed) {
    return take_step(GetParam(), {.use = FunctionsUse::Everywhere, .dropout = 0.3, .seed = seed});
  };
  const StepResult first = with(1);
  const StepResult again = with(1);
  EXPECT_EQ(first.loss, again.loss);
  EXPECT_EQ(difference_of(first, again).gradient, 0);
  EXPECT_NE(first.loss, with(2).loss);
  EXPECT_NE(first.loss, take_step(GetParam(), {.use = FunctionsUse::Everywhere}).loss);
}

std::string name_of(const testing::TestParamInfo<const char*>& info) {
  return info.param;
}

INSTANTIATE_TEST_SUITE_P(Language, FusedModel, testing::ValuesIn(kLanguageModels), name_of);
INSTANTIATE_TEST_SUITE_P(Pictures, FusedModel, testing::ValuesIn(kPictureModels), name_of);
INSTANTIATE_TEST_SUITE_P(All, FusedLanguageModel, testing::ValuesIn(kLanguageModels), name_of);

// --- the losses --------------------------------------------------------------------------------

at::Tensor some_ids() {
  return at::arange(12, at::kLong).mul(5).remainder(7).reshape({3, 4});
}

TEST(FusedLoss, LeavesLogitsThatTheCallerKeeps) {
  const UseFunctions use(FunctionsUse::Everywhere);
  at::manual_seed(1);
  const at::Tensor values = at::randn({3, 4, 7});
  const at::Tensor leaf = values.clone().requires_grad_();
  const at::Tensor logits = leaf * 1;
  next_token_loss(logits, some_ids()).backward();
  EXPECT_TRUE(logits.equal(values));
  EXPECT_TRUE(leaf.grad().defined());
}

TEST(FusedLoss, TakesTheMemoryOfLogitsThatAreGivenUp) {
  const UseFunctions use(FunctionsUse::Everywhere);
  at::manual_seed(1);
  const at::Tensor leaf = at::randn({3, 4, 7}).requires_grad_();
  at::Tensor logits = leaf * 1;
  const void* memory = logits.data_ptr();
  const void* memory_of_gradient = nullptr;
  logits.register_hook(
      [&](const at::Tensor& gradient) { memory_of_gradient = gradient.data_ptr(); });
  next_token_loss(std::move(logits), some_ids()).backward();
  EXPECT_EQ(memory_of_gradient, memory) << "3.3 GB of GPT-2's";
}

TEST(FusedLoss, TakesTheMemoryOfAModelsLogits) {
  const UseFunctions use(FunctionsUse::Everywhere);
  GPT2 model(GPT2Options{.vocab_size = 97, .hidden_size = 16, .num_layers = 1, .num_heads = 4});
  EXPECT_TRUE(device::is_last_owner(model(some_ids())));
}

TEST(FusedLoss, OfTheCpuKeepsItsBits) {
  at::manual_seed(1);
  const at::Tensor logits = at::randn({3, 4, 7});
  const at::Tensor want = at::cross_entropy_loss(logits.slice(1, 0, -1).flatten(0, 1),
                                                 some_ids().slice(1, 1).flatten());
  EXPECT_TRUE(next_token_loss(logits, some_ids()).equal(want));
}

// --- dropouts, one by one ----------------------------------------------------------------------

// GPT-2 as it is written in the paper: the blocks add their branches themselves.
at::Tensor gpt2_by_hand(GPT2Impl& model, const at::Tensor& ids, double dropout) {
  std::map<std::string, at::Tensor> parameters;
  for (const auto& item : model.named_parameters()) {
    parameters[item.key().substr(std::string("transformer.").size())] = item.value();
  }
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    return at::layer_norm(x, {x.size(-1)}, parameters[name + ".weight"],
                          parameters[name + ".bias"]);
  };
  const auto product = [&](const at::Tensor& x, const std::string& name) {
    const at::Tensor& weight = parameters[name + ".weight"];
    return at::addmm(parameters[name + ".bias"], x.flatten(0, -2), weight)
        .view({x.size(0), x.size(1), weight.size(1)});
  };
  const auto drop = [&](const at::Tensor& x) { return at::dropout(x, dropout, true); };
  at::Tensor x = at::embedding(parameters["wte.weight"], ids) +
                 at::embedding(parameters["wpe.weight"], at::arange(ids.size(1), at::kLong));
  x = drop(x);
  for (const std::string block : {"h.0.", "h.1."}) {
    const auto qkv = product(norm(x, block + "ln_1"), block + "attn.c_attn").chunk(3, -1);
    const at::Tensor mixed =
        models::layers::attend(qkv[0], qkv[1], qkv[2], {.num_heads = 4, .causal = true});
    x = x + drop(product(mixed, block + "attn.c_proj"));
    const at::Tensor wide = at::gelu(product(norm(x, block + "ln_2"), block + "mlp.c_fc"), "tanh");
    x = x + drop(product(wide, block + "mlp.c_proj"));
  }
  return at::linear(norm(x, "ln_f"), parameters["wte.weight"]);
}

TEST(FusedLayers, OfTheCpuDropAndAddWhatTheyAlwaysDid) {
  GPT2 model(GPT2Options{.vocab_size = 29,
                         .hidden_size = 16,
                         .num_layers = 2,
                         .num_heads = 4,
                         .ffn_size = 24,
                         .max_positions = 8,
                         .embedding_dropout = 0.2,
                         .attention_dropout = 0,
                         .residual_dropout = 0.2});
  at::manual_seed(8);
  const at::Tensor found = model(some_ids());
  at::manual_seed(8);
  EXPECT_TRUE(found.equal(gpt2_by_hand(*model, some_ids(), 0.2))) << "the same bits";
}

TEST(FusedLayers, DropTheBranchAndTheEmbedding) {
  const UseFunctions use(FunctionsUse::Everywhere);
  at::manual_seed(8);
  const at::NoGradGuard no_grad;
  const auto kept = [](const at::Tensor& x) {
    return x.ne(0).to(at::kDouble).mean().item<double>();
  };
  models::layers::LayerNorm norm(64, 1e-5);
  for (const at::Tensor& parameter : norm->parameters()) {
    parameter.fill_(1);
  }
  const auto of_sum = norm->of_sum(
      {.x = at::zeros({50, 64}), .branch = {.values = at::ones({50, 64})}, .dropout = 0.3});
  EXPECT_NEAR(kept(of_sum.sum), 0.7, 0.03);
  models::layers::Embedding table(9, 64);
  table->weight().fill_(1);
  const at::Tensor embedded =
      models::layers::embed(at::zeros({5, 9}, at::kLong), {.tokens = *table, .dropout = 0.3});
  EXPECT_NEAR(kept(embedded), 0.7, 0.03);
}

// --- the layers --------------------------------------------------------------------------------

// Somebody may have the norms alone in another type: the bias before them must get its gradient.
TEST(FusedLayers, ABiasIsNotLostBeforeANormOfAnotherType) {
  const UseFunctions use(FunctionsUse::Everywhere);
  at::manual_seed(2);
  models::layers::Linear linear(5, 8);
  models::layers::LayerNorm norm(8, 1e-5);
  {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : linear->parameters()) {
      parameter.normal_();
    }
    for (const at::Tensor& parameter : norm->parameters()) {
      parameter.uniform_(0.5, 1.5);
    }
  }
  norm->to(at::kDouble);
  const auto result = norm->of_sum(
      {.x = at::randn({3, 8}, at::kDouble), .branch = linear->project(at::randn({3, 5}))});
  result.sum.sum().backward();
  EXPECT_TRUE(linear->bias().grad().allclose(at::full({8}, 3.0)));
}

// As convert_sync_batch_norm() leaves one.
struct Mark : torch::autograd::FunctionPreHook {
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    return gradients;
  }
};

TEST(FusedLayers, ConvertedBatchNormsStayWithLibtorch) {
  const UseFunctions use(FunctionsUse::Everywhere);
  at::manual_seed(3);
  const at::Tensor x = at::randn({2, 3, 4, 5});
  const auto is_fused = [&](torch::nn::BatchNorm2d& norm) {
    const at::Tensor out = models::layers::batch_norm_relu(*norm, x.clone().requires_grad_());
    return out.grad_fn()->name().find("FusedBatchNorm") != std::string::npos;
  };
  torch::nn::BatchNorm2d norm(3);
  EXPECT_TRUE(is_fused(norm));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 1);
  torch::nn::BatchNorm2d cumulative(torch::nn::BatchNorm2dOptions(3).momentum(std::nullopt));
  EXPECT_FALSE(is_fused(cumulative));
  torch::nn::BatchNorm2d bare(torch::nn::BatchNorm2dOptions(3).affine(false));
  EXPECT_FALSE(is_fused(bare));
  norm->eval();
  EXPECT_FALSE(is_fused(norm));
  norm->train();
  torch::autograd::impl::add_hook(norm->running_mean, std::make_unique<Mark>());
  EXPECT_FALSE(is_fused(norm));
}

}  // namespace
}  // namespace lockstep

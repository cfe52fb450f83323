// The autograd Functions on a GPU against the same on the CPU, where the kernels' twins compute.

#include <functional>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "device/functions/functions.h"
#include "device/kernels.h"
#include "device/plugin.h"
#include "support/gpu.h"

namespace lockstep::device {
namespace {

using testing_support::gpu;
using Tensors = std::vector<at::Tensor>;
using TensorsOf = std::function<Tensors(const Tensors&)>;

class CudaFunctions : public testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS_GPU();
    ASSERT_NE(cuda_kernels(), nullptr) << plugin_state();
    at::manual_seed(17);
  }
};

double away_from(const at::Tensor& have, const at::Tensor& want) {
  EXPECT_EQ(have.sizes(), want.sizes());
  EXPECT_EQ(have.scalar_type(), want.scalar_type());
  if (have.numel() == 0) {
    return 0;
  }
  const at::Tensor a = have.detach().cpu().to(at::kDouble);
  const at::Tensor b = want.detach().to(at::kDouble);
  return ((a - b).abs() / b.abs().clamp_min(1)).max().item<double>();
}

// The activations, which come first, in both types; parameters in float32.
void expect_like_the_twins(const Tensors& inputs, size_t num_activations,
                           const TensorsOf& function) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const double limit = type == at::kFloat ? 1e-4 : 1.0 / 50;
    Tensors here, there;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor value = inputs[i].to(i < num_activations ? type : at::kFloat);
      here.push_back(value.clone().set_requires_grad(true));
      there.push_back(value.to(gpu(), /*non_blocking=*/false, /*copy=*/true).requires_grad_());
    }
    const Tensors want = function(here);
    const Tensors have = function(there);
    at::Tensor want_sum = at::zeros({});
    at::Tensor have_sum = at::zeros({}, gpu());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(have[i].is_cuda());
      EXPECT_LT(away_from(have[i], want[i]), limit) << "result " << i;
      const at::Tensor weights = at::randn(want[i].sizes());
      want_sum = want_sum + (want[i].to(at::kFloat) * weights).sum();
      have_sum = have_sum + (have[i].to(at::kFloat) * weights.to(gpu())).sum();
    }
    want_sum.backward();
    have_sum.backward();
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_LT(away_from(there[i].grad(), here[i].grad()), limit) << "input " << i;
    }
  }
}

TEST_F(CudaFunctions, ResidualNormIsThatOfTheTwins) {
  for (const int64_t columns : {768, 33}) {
    for (const int64_t rows : {29, 0}) {
      expect_like_the_twins({at::randn({2, rows, columns}), at::randn({2, rows, columns}),
                             at::rand({columns}) + 0.5, at::randn({columns}), at::randn({columns})},
                            2, [](const Tensors& x) {
                              const NormOutput result =
                                  residual_norm({.x = x[0],
                                                 .branch = x[1] + x[4].detach().to(x[1].dtype()),
                                                 .branch_bias = x[4],
                                                 .weight = x[2],
                                                 .bias = x[3]});
                              return Tensors{result.sum, result.out};
                            });
    }
  }
}

TEST_F(CudaFunctions, ResidualNormDropsTheSameElementsForwardAndBackward) {
  const at::TensorOptions on_gpu(gpu());
  const at::Tensor x = at::zeros({500, 768}, on_gpu);
  const at::Tensor branch = at::ones({500, 768}, on_gpu).requires_grad_();
  const auto run = [&] {
    return residual_norm({.x = x,
                          .branch = branch,
                          .weight = at::ones({768}, on_gpu),
                          .bias = at::zeros({768}, on_gpu),
                          .dropout = 0.25});
  };
  const at::Tensor mask = run().sum;
  EXPECT_NEAR(mask.detach().ne(0).to(at::kFloat).mean().item<double>(), 0.75, 0.005);
  mask.sum().backward();
  EXPECT_TRUE(branch.grad().equal(mask.detach()));
  EXPECT_FALSE(run().sum.equal(mask)) << "each draws anew";
  at::Generator generator = at::globalContext().defaultGenerator(gpu());
  generator.set_current_seed(5);
  const at::Tensor first = run().sum;
  generator.set_current_seed(5);
  EXPECT_TRUE(run().sum.equal(first));
}

TEST_F(CudaFunctions, GeluIsThatOfTheTwins) {
  for (const GeluForm form : {GeluForm::Erf, GeluForm::Tanh}) {
    for (const int64_t columns : {3072, 77}) {
      expect_like_the_twins({at::randn({3, 11, columns}), at::randn({columns})}, 1,
                            [form](const Tensors& x) { return Tensors{gelu(x[0], form, x[1])}; });
    }
  }
}

TEST_F(CudaFunctions, VocabularyAndCrossEntropyAreThoseOfTheTwins) {
  for (const int64_t words : {1001, 64}) {
    at::Tensor labels = at::randint(0, words, {24}, at::kLong);
    labels[5] = -100;
    expect_like_the_twins(
        {at::randn({2, 12, 40}), at::randn({words, 40}) * 0.3, at::randn({words})}, 1,
        [&](const Tensors& x) {
          const at::Tensor logits = vocabulary_linear(
              {.x = x[0], .weight = x[1], .bias = x[2], .type = x[0].scalar_type()});
          EXPECT_TRUE(is_last_owner(logits));
          const at::Tensor loss =
              cross_entropy(logits.flatten(0, 1), labels.to(logits.device()), {.consumes = true});
          return Tensors{loss * 20};
        });
  }
}

TEST_F(CudaFunctions, EmbeddingIsThatOfTheTwins) {
  const at::Tensor ids = at::randint(0, 50, {6, 31}, at::kLong);
  const at::Tensor kinds = at::randint(0, 2, {6, 31}, at::kLong);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t columns : {768, 5}) {
      expect_like_the_twins(
          {at::randn({50, columns}), at::randn({40, columns}), at::randn({2, columns})}, 0,
          [&](const Tensors& x) {
            return Tensors{embedding(ids.to(x[0].device()), {.tokens = x[0],
                                                             .positions = x[1],
                                                             .segments = x[2],
                                                             .segment_ids = kinds.to(x[0].device()),
                                                             .padding = 7,
                                                             .type = type})};
          });
    }
  }
}

TEST_F(CudaFunctions, BatchNormIsThatOfTheTwins) {
  for (const bool relu : {false, true}) {
    expect_like_the_twins(
        {at::randn({4, 24, 7, 5}), at::randn({4, 24, 7, 5}), at::rand({24}) + 0.5, at::randn({24})},
        2, [&](const Tensors& x) {
          const at::Tensor mean = at::zeros_like(x[2]).detach();
          const at::Tensor variance = at::ones_like(x[2]).detach();
          const at::Tensor out = batch_norm({.x = x[0],
                                             .residual = x[1],
                                             .weight = x[2],
                                             .bias = x[3],
                                             .running_mean = mean,
                                             .running_var = variance,
                                             .relu = relu});
          return Tensors{out, mean, variance};
        });
  }
}

}  // namespace
}  // namespace lockstep::device

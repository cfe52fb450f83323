// The Functions on activations, FusedNorm, FusedGelu and FusedBatchNorm, on the kernels' twins.

#include <cmath>

#include <ATen/autocast_mode.h>

#include "device/functions/call.h"
#include "device/functions/functions.h"
#include "device/kernels.h"
#include "functions_checks.h"

namespace lockstep::device {
namespace {

using testing_support::expect_same;
using testing_support::expect_second_derivatives_refused;
using testing_support::float_gradcheck;
using testing_support::kEpsilon;
using testing_support::leaf;
using testing_support::Tensors;
using testing_support::worst_of;

class ActivationFunctions : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(7); }
};

// --- which functions, which type ---------------------------------------------------------------

TEST_F(ActivationFunctions, AreForAGpuUnlessATestSaysOtherwise) {
  const at::Tensor x = at::randn({2, 3});
  EXPECT_FALSE(has_functions(x)) << "libtorch's operators are faster on a CPU";
  const UseFunctions use(FunctionsUse::Everywhere);
  EXPECT_TRUE(has_functions(x));
  EXPECT_TRUE(has_functions(x.to(at::kBFloat16)));
  EXPECT_FALSE(has_functions(x.to(at::kDouble)));
  EXPECT_FALSE(has_functions(x.to(at::kHalf)));
  {
    const UseFunctions never(FunctionsUse::Nowhere);
    EXPECT_FALSE(has_functions(x));
  }
  EXPECT_TRUE(has_functions(x)) << "the end of a scope restores what was";
}

TEST_F(ActivationFunctions, AreLeftToLibtorchWhereThereIsNoCodeForTheGpu) {
  EXPECT_TRUE(can_run(cpu_kernels(), at::kCPU));
  LockstepKernels foreign = cpu_kernels();
  foreign.gelu_forward = [](const LockstepGeluForward*, void*) -> const char* {
    return "no kernel image is available for execution on the device";
  };
  EXPECT_FALSE(can_run(foreign, at::kCPU));
}

TEST_F(ActivationFunctions, TakeTheTypeOfAutocast) {
  const UseFunctions use(FunctionsUse::Everywhere);
  const at::Tensor x = at::randn({2, 3});
  const at::Tensor weight = at::randn({3});
  EXPECT_EQ(function_type(x, {weight, at::Tensor()}), at::kFloat);
  EXPECT_EQ(function_type(x.to(at::kBFloat16), {weight}), at::kBFloat16);
  EXPECT_EQ(function_type(x, {weight, weight.to(at::kBFloat16)}), std::nullopt);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const auto in_bfloat16 = function_type(x, {weight});
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  const auto in_half = function_type(x, {weight});
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(in_bfloat16, at::kBFloat16);
  EXPECT_EQ(in_half, std::nullopt) << "there are no kernels for it";
}

// --- residual, dropout and norm ----------------------------------------------------------------

NormOutput norm_of(const Tensors& x, double dropout = 0) {
  return residual_norm({.x = x[0],
                        .branch = x[3],
                        .weight = x[1],
                        .bias = x[2],
                        .epsilon = kEpsilon,
                        .dropout = dropout});
}

Tensors norm_inputs(at::IntArrayRef sizes) {
  const int64_t columns = sizes.back();
  return {at::randn(sizes) + 0.3, at::rand({columns}) + 0.5, at::randn({columns}),
          at::randn(sizes)};
}

TEST_F(ActivationFunctions, ResidualNormIsThatOfItsOperators) {
  const auto have = [](const Tensors& x) {
    const NormOutput result = norm_of(x);
    return Tensors{result.sum, result.out};
  };
  const auto want = [](const Tensors& x) {
    const at::Tensor sum = x[0] + x[3];
    return Tensors{sum, at::layer_norm(sum, x[1].sizes(), x[1], x[2], kEpsilon)};
  };
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{3, 5, 13}, {1, 8}, {7, 1, 33}, {0, 4}, {4, 2}}) {
    expect_same(norm_inputs(sizes), have, want, sizes.back() == 2 ? 1e-3 : 2e-5);
  }
  float_gradcheck(norm_inputs({3, 7}), [](const Tensors& x) {
    const NormOutput result = norm_of(x);
    return at::cat({result.sum, result.out});
  });
}

TEST_F(ActivationFunctions, ResidualNormTakesAnyStridesAndPartOfItsResults) {
  const auto transposed = [](Tensors x) {
    x[0] = x[0].t();
    x[3] = x[3].slice(1, 0, 26, 2);
    return x;
  };
  const Tensors inputs{at::randn({13, 5}), at::rand({13}) + 0.5, at::randn({13}),
                       at::randn({5, 26})};
  for (const int part : {0, 1}) {  // the other result has no gradient
    expect_same(
        inputs,
        [&](const Tensors& x) {
          const NormOutput result = norm_of(transposed(x));
          return Tensors{part == 0 ? result.sum + 0 * result.out : result.out};
        },
        [&](const Tensors& x) {
          const Tensors y = transposed(x);
          const at::Tensor sum = y[0] + y[3];
          const at::Tensor out = at::layer_norm(sum, {13}, y[1], y[2], kEpsilon);
          return Tensors{part == 0 ? sum + 0 * out : out};
        });
  }
  const Tensors x{leaf(inputs[0].t(), at::kFloat), leaf(inputs[1], at::kFloat),
                  leaf(inputs[2], at::kFloat), at::randn({5, 13})};
  norm_of(x).sum.sum().backward();
  EXPECT_TRUE(x[0].grad().equal(at::ones({5, 13}))) << "the sum passes its gradient on";
  EXPECT_EQ(x[1].grad().abs().sum().item<double>(), 0) << "nothing came through the norm";
}

TEST_F(ActivationFunctions, ResidualNormWithoutABranchNormsX) {
  const Tensors inputs = norm_inputs({4, 9});
  expect_same(
      {inputs[0], inputs[1], inputs[2]},
      [](const Tensors& x) {
        const NormOutput result = residual_norm(
            {.x = x[0], .branch = {}, .weight = x[1], .bias = x[2], .epsilon = kEpsilon});
        return Tensors{result.out, result.sum};
      },
      [](const Tensors& x) {
        return Tensors{at::layer_norm(x[0], {9}, x[1], x[2], kEpsilon), x[0]};
      });
}

TEST_F(ActivationFunctions, ResidualNormGivesTheBiasOfItsBranchItsGradient) {
  Tensors inputs = norm_inputs({2, 3, 9});
  inputs.push_back(at::randn({9}));
  expect_same(
      inputs,
      [](const Tensors& x) {
        const NormOutput result = residual_norm({.x = x[0],
                                                 .branch = x[3] + x[4].detach(),
                                                 .branch_bias = x[4],
                                                 .weight = x[1],
                                                 .bias = x[2],
                                                 .epsilon = kEpsilon});
        return Tensors{result.sum, result.out};
      },
      [](const Tensors& x) {
        const at::Tensor sum = x[0] + (x[3] + x[4]);
        return Tensors{sum, at::layer_norm(sum, {9}, x[1], x[2], kEpsilon)};
      });
}

TEST_F(ActivationFunctions, ResidualNormDropsTheSameElementsForwardAndBackward) {
  const int64_t rows = 400, columns = 257;
  const at::Tensor x = at::zeros({rows, columns});
  Tensors inputs{x, at::rand({columns}) + 0.5, at::randn({columns}),
                 leaf(at::ones({rows, columns}), at::kFloat)};
  at::manual_seed(3);
  const NormOutput result = norm_of(inputs, 0.25);
  const at::Tensor mask = result.sum.detach();
  EXPECT_NEAR((mask != 0).to(at::kDouble).mean().item<double>(), 0.75, 0.005);
  EXPECT_NEAR(mask.mean().item<double>(), 1, 0.01);
  const at::Tensor weights = at::randn({rows, columns});
  ((result.sum + result.out) * weights).sum().backward();
  // Through the same norm without a dropout, of what was left.
  Tensors again{leaf(mask, at::kDouble), inputs[1].to(at::kDouble), inputs[2].to(at::kDouble)};
  const at::Tensor out = at::layer_norm(again[0], {columns}, again[1], again[2], kEpsilon);
  ((again[0] + out) * weights).sum().backward();
  EXPECT_LT(worst_of(inputs[3].grad(), again[0].grad() * mask), 1e-4);

  at::manual_seed(3);
  EXPECT_TRUE(norm_of(inputs, 0.25).sum.equal(result.sum)) << "the generator's seed decides";
  at::manual_seed(4);
  EXPECT_FALSE(norm_of(inputs, 0.25).sum.equal(result.sum));
  EXPECT_FALSE(norm_of(inputs, 0.25).sum.equal(norm_of(inputs, 0.25).sum)) << "each call draws";
}

TEST_F(ActivationFunctions, DropoutsThatShareADrawDifferAndTakeOneNumber) {
  Tensors inputs = norm_inputs({50, 64});
  inputs[0].zero_();
  inputs[3].fill_(1);
  at::Tensor first, second;
  at::manual_seed(5);
  {
    const SharedDropout shared;
    first = norm_of(inputs, 0.5).sum;
    const SharedDropout inner;
    second = norm_of(inputs, 0.5).sum;
  }
  const at::Tensor next = at::randint(1 << 20, {4});
  const double alike = (first == second).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(alike, 0.5, 0.05) << "independent";
  at::manual_seed(5);
  EXPECT_TRUE(norm_of(inputs, 0.5).sum.equal(first));
  EXPECT_TRUE(at::randint(1 << 20, {4}).equal(next)) << "both drew once";
  for (const uint64_t seed : {5, 6}) {
    at::manual_seed(seed);
    const SharedDropout shared;
    EXPECT_EQ(norm_of(inputs, 0.5).sum.equal(first), seed == 5) << "the next pass draws anew";
  }
}

TEST_F(ActivationFunctions, ResidualNormWithoutGradientsAndItsRefusals) {
  Tensors inputs = norm_inputs({3, 8});
  EXPECT_FALSE(norm_of(inputs).out.requires_grad());
  inputs[1] = leaf(inputs[1], at::kFloat);
  inputs[3] = leaf(inputs[3], at::kFloat);
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(norm_of(inputs).out.requires_grad());
  }
  const at::Tensor out = norm_of(inputs).out;  // neither x nor the bias wants a gradient
  out.pow(2).sum().backward();
  EXPECT_TRUE(inputs[1].grad().defined());
  EXPECT_TRUE(inputs[3].grad().defined());
  EXPECT_FALSE(inputs[0].grad().defined());
  expect_second_derivatives_refused(norm_of(inputs).out.pow(2).sum(), inputs[3]);
  EXPECT_THROW(norm_of(inputs, 0.9999), InternalError);
  inputs[3] = at::randn({4, 8});
  EXPECT_THROW(norm_of(inputs), InternalError);
}

TEST_F(ActivationFunctions, ResidualNormInBfloat16KeepsParametersInFloat32) {
  const Tensors inputs = norm_inputs({6, 40});
  const at::Tensor x = leaf(inputs[0], at::kBFloat16);
  const at::Tensor branch = leaf(inputs[3], at::kFloat);  // is converted
  const at::Tensor weight = leaf(inputs[1], at::kFloat);
  const NormOutput result = norm_of({x, weight, inputs[2], branch});
  EXPECT_EQ(result.out.scalar_type(), at::kBFloat16);
  EXPECT_EQ(result.sum.scalar_type(), at::kBFloat16);
  EXPECT_LT(worst_of(result.sum, inputs[0] + inputs[3]), 0.05);
  result.out.to(at::kFloat).pow(3).sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(branch.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
}

// --- GELU --------------------------------------------------------------------------------------

TEST_F(ActivationFunctions, GeluIsThatOfItsOperators) {
  for (const auto& [form, name] :
       {std::pair(GeluForm::Erf, "none"), std::pair(GeluForm::Tanh, "tanh")}) {
    const auto have = [form = form](const Tensors& x) {
      return Tensors{gelu(x[0] + x[1].detach(), form, x[1])};
    };
    const auto want = [name = name](const Tensors& x) {
      return Tensors{at::gelu(x[0] + x[1], name)};
    };
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{3, 5, 13}, {1, 8}, {9, 1}, {0, 4}}) {
      expect_same({at::randn(sizes) * 2, at::randn({sizes.back()})}, have, want);
    }
    float_gradcheck({at::randn({2, 5}) * 2},
                    [form = form](const Tensors& x) { return gelu(x[0], form); });
    expect_same(
        {at::randn({5, 4})},
        [form = form](const Tensors& x) { return Tensors{gelu(x[0].t(), form)}; },
        [name = name](const Tensors& x) { return Tensors{at::gelu(x[0].t(), name)}; });
  }
}

TEST_F(ActivationFunctions, GeluGivesOnlyTheGradientsThatAreWanted) {
  const at::Tensor x = at::randn({4, 3});
  const at::Tensor bias = leaf(at::randn({3}), at::kFloat);
  gelu(x, GeluForm::Erf, bias).sum().backward();
  const at::Tensor with_gradient = leaf(x, at::kFloat);
  at::gelu(with_gradient).sum().backward();
  EXPECT_LT(worst_of(bias.grad(), with_gradient.grad().sum(0)), 1e-5);
  EXPECT_FALSE(gelu(x, GeluForm::Erf).requires_grad());
  expect_second_derivatives_refused(gelu(with_gradient, GeluForm::Erf).sum(), with_gradient);
}

// --- batch norm --------------------------------------------------------------------------------

struct Running {
  at::Tensor mean = at::tensor({0.5f, -1.0f, 2.0f});
  at::Tensor variance = at::tensor({1.5f, 0.5f, 3.0f});
};

at::Tensor normed_batch(const Tensors& x, const Running& running, bool relu) {
  return batch_norm({.x = x[0],
                     .residual = x.size() > 3 ? x[3] : at::Tensor(),
                     .weight = x[1],
                     .bias = x[2],
                     .running_mean = running.mean,
                     .running_var = running.variance,
                     .momentum = 0.3,
                     .epsilon = kEpsilon,
                     .relu = relu});
}

TEST_F(ActivationFunctions, BatchNormIsThatOfItsOperators) {
  for (const bool relu : {false, true}) {
    for (const bool has_residual : {false, true}) {
      for (const std::vector<int64_t>& sizes :
           {std::vector<int64_t>{2, 3, 4, 5}, {5, 3, 1, 1}, {1, 3, 3, 1}}) {
        Tensors inputs{at::randn(sizes) * 2 + 1, at::rand({3}) + 0.5, at::randn({3})};
        if (has_residual) {
          inputs.push_back(at::randn(sizes));
        }
        const Running have, want{have.mean.to(at::kDouble), have.variance.to(at::kDouble)};
        expect_same(
            inputs, [&](const Tensors& x) { return Tensors{normed_batch(x, have, relu)}; },
            [&](const Tensors& x) {
              at::Tensor y = at::batch_norm(x[0], x[1], x[2], want.mean, want.variance,
                                            /*training=*/true, 0.3, kEpsilon, false);
              y = x.size() > 3 ? y + x[3] : y;
              return Tensors{relu ? at::relu(y) : y};
            },
            1e-4);
        EXPECT_LT(worst_of(have.mean, want.mean), 1e-6);
        EXPECT_LT(worst_of(have.variance, want.variance), 1e-5);
      }
    }
  }
  // Without a ReLU, whose kink a difference of values may cross.
  float_gradcheck(
      {at::randn({2, 3, 2, 1}), at::rand({3}) + 0.5, at::randn({3}), at::randn({2, 3, 2, 1})},
      [](const Tensors& x) { return normed_batch(x, {}, false); });
}

TEST_F(ActivationFunctions, BatchNormKeepsChannelsLastAndNeedsNoRunningStatistics) {
  const Tensors x{leaf(at::randn({2, 3, 4, 5}), at::kBFloat16), leaf(at::randn({3}), at::kFloat),
                  at::randn({3})};
  const Running none{at::Tensor(), at::Tensor()};
  const at::Tensor out = normed_batch(x, none, true);
  EXPECT_TRUE(out.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  out.to(at::kFloat).pow(2).sum().backward();
  EXPECT_EQ(x[1].grad().scalar_type(), at::kFloat);
  EXPECT_EQ(x[0].grad().scalar_type(), at::kBFloat16);
  EXPECT_FALSE(x[2].grad().defined());
  expect_second_derivatives_refused(normed_batch(x, none, true).sum(), x[0]);
  EXPECT_THROW(normed_batch({at::randn({1, 3, 1, 1}), x[1], x[2]}, none, true), InternalError);
}

}  // namespace
}  // namespace lockstep::device

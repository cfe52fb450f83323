#pragma once

// The autograd Functions over the kernels beside libtorch's operators and beside differences of
// their own values.

#include <functional>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>

#include "support/gradcheck.h"

namespace lockstep::testing_support {

using Tensors = std::vector<at::Tensor>;
using TensorsOf = std::function<Tensors(const Tensors&)>;

inline constexpr double kEpsilon = 1e-5;

inline double worst_of(const at::Tensor& have, const at::Tensor& want) {
  EXPECT_EQ(have.sizes(), want.sizes());
  return have.numel() == 0
             ? 0
             : (have.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
}

inline at::Tensor leaf(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.detach().clone().to(type).set_requires_grad(true);
}

// The sum of all results, each element with a weight of its own.
inline at::Tensor weighed(const Tensors& results, const Tensors& weights) {
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (size_t i = 0; i < results.size(); ++i) {
    sum = sum + (results[i].to(at::kDouble) * weights[i]).sum();
  }
  return sum;
}

// Values and gradients of a function of float32 tensors against another one of float64 tensors.
inline void expect_same(const Tensors& inputs, const TensorsOf& have, const TensorsOf& want,
                        double limit = 2e-5) {
  Tensors have_inputs, want_inputs, weights;
  for (const at::Tensor& input : inputs) {
    have_inputs.push_back(leaf(input, at::kFloat));
    want_inputs.push_back(leaf(input, at::kDouble));
  }
  const Tensors have_results = have(have_inputs);
  const Tensors want_results = want(want_inputs);
  ASSERT_EQ(have_results.size(), want_results.size());
  for (size_t i = 0; i < have_results.size(); ++i) {
    weights.push_back(at::randn(want_results[i].sizes(), at::kDouble));
    EXPECT_LT(worst_of(have_results[i], want_results[i]), limit) << "result " << i;
  }
  weighed(have_results, weights).backward();
  weighed(want_results, weights).backward();
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_TRUE(have_inputs[i].grad().defined()) << "input " << i;
    EXPECT_EQ(have_inputs[i].grad().scalar_type(), at::kFloat) << "input " << i;
    EXPECT_LT(worst_of(have_inputs[i].grad(), want_inputs[i].grad()), limit) << "input " << i;
  }
}

// Differences of values in float32 need a step that is large and a limit that is.
inline void float_gradcheck(const Tensors& inputs,
                            const std::function<at::Tensor(const Tensors&)>& function) {
  Tensors doubles;
  for (const at::Tensor& input : inputs) {
    doubles.push_back(input.to(at::kDouble));
  }
  Group group = make_single_group();
  gradcheck(group, doubles,
            [&](const Tensors& x) {
              Tensors floats;
              for (const at::Tensor& one : x) {
                floats.push_back(one.to(at::kFloat));
              }
              return function(floats).to(at::kDouble);
            },
            {.step = 5e-3, .tolerance = 2e-3});
}

inline void expect_second_derivatives_refused(const at::Tensor& result, const at::Tensor& input) {
  EXPECT_THAT([&] { torch::autograd::grad({result}, {input}, {}, true, /*create_graph=*/true); },
              testing::ThrowsMessage<UsageError>(testing::HasSubstr("backward with create_graph")));
}

}  // namespace lockstep::testing_support

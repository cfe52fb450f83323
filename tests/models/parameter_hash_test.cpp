#include "models/parameter_hash.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

namespace lockstep {
namespace {

torch::nn::Linear zeros() {
  const at::NoGradGuard no_grad;
  torch::nn::Linear linear(3, 2);
  for (const auto& parameter : linear->parameters()) {
    parameter.zero_();
  }
  return linear;
}

TEST(ParameterHash, IsEqualForEqualBits) {
  EXPECT_EQ(models::hash_parameters(*zeros()), models::hash_parameters(*zeros()));
}

TEST(ParameterHash, SeesASingleBit) {
  const at::NoGradGuard no_grad;
  const torch::nn::Linear minus_zero = zeros();
  minus_zero->bias[1] = -0.0f;  // equal as a number, not as bits
  EXPECT_NE(models::hash_parameters(*zeros()), models::hash_parameters(*minus_zero));
}

TEST(ParameterHash, SeesBuffers) {
  torch::nn::Linear with_buffer = zeros();
  with_buffer->register_buffer("count", at::zeros({1}));
  EXPECT_NE(models::hash_parameters(*zeros()), models::hash_parameters(*with_buffer));
}

}  // namespace
}  // namespace lockstep

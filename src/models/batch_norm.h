#pragma once

// BatchNorm with what stands beside it in a ResNet, as one kernel on a GPU that trains.

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/batchnorm.h>

namespace lockstep::models::layers {

// relu(norm(x) + residual); `residual` may be undefined. `norm` may have been converted to
// synchronised statistics.
at::Tensor batch_norm_relu(torch::nn::BatchNorm2dImpl& norm, const at::Tensor& x_BCHW,
                           const at::Tensor& residual_BCHW = {});

// norm(x)
at::Tensor batch_norm(torch::nn::BatchNorm2dImpl& norm, const at::Tensor& x_BCHW);

}  // namespace lockstep::models::layers

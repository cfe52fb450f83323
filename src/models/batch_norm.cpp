#include "models/batch_norm.h"

#include <ATen/ops/relu.h>
#include <torch/csrc/autograd/variable.h>

#include "device/functions/functions.h"

namespace lockstep::models::layers {
namespace {

// What convert_sync_batch_norm() leaves on a module, for the operator of libtorch to find.
bool has_mark(const at::Tensor& running_mean) {
  return torch::autograd::impl::get_autograd_meta(running_mean) != nullptr &&
         !torch::autograd::impl::hooks(running_mean).empty();
}

bool is_for_function(const torch::nn::BatchNorm2dImpl& norm, const at::Tensor& x_BCHW) {
  return norm.is_training() && norm.options.affine() && norm.options.track_running_stats() &&
         norm.options.momentum().has_value() && !has_mark(norm.running_mean) && x_BCHW.dim() == 4 &&
         x_BCHW.size(1) == norm.weight.size(0) && x_BCHW.numel() > x_BCHW.size(1) &&
         device::has_functions(x_BCHW) && norm.weight.scalar_type() == at::kFloat &&
         norm.running_mean.scalar_type() == at::kFloat;
}

struct After {
  at::Tensor residual_BCHW = {};
  bool relu = false;
};

at::Tensor apply_norm(torch::nn::BatchNorm2dImpl& norm, const at::Tensor& x_BCHW,
                      const After& after) {
  if (is_for_function(norm, x_BCHW)) {
    norm.num_batches_tracked.add_(1);
    return device::batch_norm({.x = x_BCHW,
                               .residual = after.residual_BCHW,
                               .weight = norm.weight,
                               .bias = norm.bias,
                               .running_mean = norm.running_mean,
                               .running_var = norm.running_var,
                               .momentum = *norm.options.momentum(),
                               .epsilon = norm.options.eps(),
                               .relu = after.relu});
  }
  at::Tensor y_BCHW = norm.forward(x_BCHW);
  if (after.residual_BCHW.defined()) {
    y_BCHW = y_BCHW + after.residual_BCHW;
  }
  return after.relu ? at::relu(y_BCHW) : y_BCHW;
}

}  // namespace

at::Tensor batch_norm_relu(torch::nn::BatchNorm2dImpl& norm, const at::Tensor& x_BCHW,
                           const at::Tensor& residual_BCHW) {
  return apply_norm(norm, x_BCHW, {.residual_BCHW = residual_BCHW, .relu = true});
}

at::Tensor batch_norm(torch::nn::BatchNorm2dImpl& norm, const at::Tensor& x_BCHW) {
  return apply_norm(norm, x_BCHW, {});
}

}  // namespace lockstep::models::layers

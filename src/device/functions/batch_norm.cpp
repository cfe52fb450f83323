#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <lockstep/base/error.h>

#include "device/functions/call.h"
#include "device/functions/functions.h"
#include "device/kernels.h"

namespace lockstep::device {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kLayout = at::MemoryFormat::ChannelsLast;

at::Tensor like_pixels(const at::Tensor& x) {
  return at::empty_like(x, x.options(), kLayout);
}

class FusedBatchNorm : public torch::autograd::Function<FusedBatchNorm> {
 public:
  struct Settings {
    at::Tensor running_mean;  // or undefined
    at::Tensor running_var;
    double momentum = 0;
    double epsilon = 0;
    bool relu = false;
  };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const std::optional<at::Tensor>& residual,
                            const Settings& settings) {
    const int64_t channels = x.size(1);
    const at::Device device = x.device();
    const at::Tensor out = like_pixels(x);
    const at::Tensor statistics = at::empty({2, channels}, weight.options());
    const int64_t rows = x.numel() / channels;
    const at::Tensor scratch =
        scratch_of(device, kernels_of(device).column_scratch_bytes(rows, channels));
    const LockstepBatchNormForward arguments{.rows = rows,
                                             .channels = channels,
                                             .type = kernel_type(x),
                                             .relu = settings.relu ? 1 : 0,
                                             .epsilon = static_cast<float>(settings.epsilon),
                                             .momentum = static_cast<float>(settings.momentum),
                                             .x = data_of(x),
                                             .residual = residual ? data_of(*residual) : nullptr,
                                             .weight = floats_of(weight),
                                             .bias = floats_of(bias),
                                             .out = data_of(out),
                                             .mean = floats_of(statistics),
                                             .rstd = floats_of(statistics) + channels,
                                             .running_mean = floats_of(settings.running_mean),
                                             .running_var = floats_of(settings.running_var),
                                             .scratch = data_of(scratch)};
    call_kernel(device, &LockstepKernels::batch_norm_forward, arguments, "batch_norm_forward");
    for (const at::Tensor& changed : {settings.running_mean, settings.running_var}) {
      if (changed.defined()) {
        changed.unsafeGetTensorImpl()->bump_version();
      }
    }
    context->set_materialize_grads(false);
    context->save_for_backward({x, settings.relu ? out : at::Tensor(), statistics, weight});
    context->saved_data["relu"] = settings.relu;
    context->saved_data["residual"] = residual.has_value();
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivatives("batch_norm");
    variable_list results(5);
    if (!gradients[0].defined()) {
      return results;
    }
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[3];
    const bool relu = context->saved_data["relu"].toBool();
    const bool wants_residual =
        context->saved_data["residual"].toBool() && context->needs_input_grad(3);
    const at::Tensor grad_out = gradients[0].contiguous(kLayout);
    const at::Tensor grad_x = like_pixels(x);
    const at::Tensor grad_weight = at::empty_like(weight);
    const at::Tensor grad_bias = at::empty_like(weight);
    // Without a ReLU between them it is what came.
    const at::Tensor grad_residual =
        !wants_residual ? at::Tensor() : (relu ? like_pixels(x) : grad_out);
    const int64_t channels = x.size(1);
    const int64_t rows = x.numel() / channels;
    const at::Tensor scratch =
        scratch_of(x.device(), kernels_of(x.device()).column_scratch_bytes(rows, channels));
    const LockstepBatchNormBackward arguments{
        .rows = rows,
        .channels = channels,
        .type = kernel_type(x),
        .relu = relu ? 1 : 0,
        .accumulate = 0,
        .grad_out = data_of(grad_out),
        .x = data_of(x),
        .out = data_of(saved[1]),
        .mean = floats_of(saved[2]),
        .rstd = floats_of(saved[2]) + channels,
        .weight = floats_of(weight),
        .grad_x = data_of(grad_x),
        .grad_residual = relu ? data_of(grad_residual) : nullptr,
        .grad_weight = floats_of(grad_weight),
        .grad_bias = floats_of(grad_bias),
        .scratch = data_of(scratch)};
    call_kernel(x.device(), &LockstepKernels::batch_norm_backward, arguments,
                "batch_norm_backward");
    const auto if_needed = [&](size_t index, const at::Tensor& gradient) {
      return context->needs_input_grad(index) ? gradient : at::Tensor();
    };
    results[0] = if_needed(0, grad_x);
    results[1] = if_needed(1, grad_weight);
    results[2] = if_needed(2, grad_bias);
    results[3] = grad_residual;
    return results;
  }
};

}  // namespace

at::Tensor batch_norm(const BatchNormInput& input) {
  LOCKSTEP_CHECK(input.x.dim() == 4 && input.x.size(1) == input.weight.numel() &&
                     input.x.numel() > input.x.size(1),
                 "a batch of {} elements in {} dimensions is normalised by {} weights",
                 input.x.numel(), input.x.dim(), input.weight.numel());
  LOCKSTEP_CHECK(!input.residual.defined() || input.residual.sizes() == input.x.sizes(),
                 "the residual has not the shape of what it is added to");
  const at::Tensor x = input.x.contiguous(kLayout);
  const at::Tensor residual = input.residual.defined()
                                  ? input.residual.to(x.scalar_type()).contiguous(kLayout)
                                  : input.residual;
  return FusedBatchNorm::apply(x, input.weight.contiguous(), input.bias.contiguous(),
                               if_defined(residual),
                               FusedBatchNorm::Settings{.running_mean = input.running_mean,
                                                        .running_var = input.running_var,
                                                        .momentum = input.momentum,
                                                        .epsilon = input.epsilon,
                                                        .relu = input.relu});
}

}  // namespace lockstep::device

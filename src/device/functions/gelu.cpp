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

class FusedGelu : public torch::autograd::Function<FusedGelu> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>& bias, int64_t form) {
    const int64_t columns = x.size(-1);
    const at::Tensor out = at::empty_like(x);
    const LockstepGeluForward arguments{.rows = rows_of(x, columns),
                                        .columns = columns,
                                        .type = kernel_type(x),
                                        .form = static_cast<int32_t>(form),
                                        .x = data_of(x),
                                        .out = data_of(out)};
    call_kernel(x.device(), &LockstepKernels::gelu_forward, arguments, "gelu_forward");
    context->set_materialize_grads(false);
    context->save_for_backward({x});
    context->saved_data["form"] = form;
    context->saved_data["bias"] = bias.has_value();
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivatives("gelu");
    if (!gradients[0].defined()) {
      return variable_list(3);
    }
    const at::Tensor x = context->get_saved_variables()[0];
    const int64_t columns = x.size(-1);
    const int64_t rows = rows_of(x, columns);
    const bool wants_bias = context->saved_data["bias"].toBool() && context->needs_input_grad(1);
    const at::Tensor grad_out = gradients[0].contiguous();
    const at::Tensor grad_x = at::empty_like(x);
    const at::Tensor grad_bias =
        wants_bias ? at::empty({columns}, x.options().dtype(at::kFloat)) : at::Tensor();
    const at::Tensor scratch =
        scratch_of(x.device(), kernels_of(x.device()).column_scratch_bytes(rows, columns));
    const LockstepGeluBackward arguments{
        .rows = rows,
        .columns = columns,
        .type = kernel_type(x),
        .form = static_cast<int32_t>(context->saved_data["form"].toInt()),
        .accumulate = 0,
        .x = data_of(x),
        .grad_out = data_of(grad_out),
        .grad_x = data_of(grad_x),
        .grad_bias = floats_of(grad_bias),
        .scratch = data_of(scratch)};
    call_kernel(x.device(), &LockstepKernels::gelu_backward, arguments, "gelu_backward");
    return {context->needs_input_grad(0) ? grad_x : at::Tensor(), grad_bias, {}};
  }
};

}  // namespace

at::Tensor gelu(const at::Tensor& x, GeluForm form, const at::Tensor& bias) {
  LOCKSTEP_CHECK(!bias.defined() || bias.numel() == x.size(-1),
                 "rows of {} elements have a bias of {}", x.size(-1), bias.numel());
  return FusedGelu::apply(x.contiguous(), if_defined(bias),
                          int64_t{form == GeluForm::Erf ? LOCKSTEP_GELU_ERF : LOCKSTEP_GELU_TANH});
}

}  // namespace lockstep::device

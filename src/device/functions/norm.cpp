#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <lockstep/base/error.h>

#include "device/functions/call.h"
#include "device/functions/functions.h"
#include "device/kernels.h"

namespace lockstep::device {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class FusedNorm : public torch::autograd::Function<FusedNorm> {
 public:
  // Returns {out}, or with a branch {out, sum}.
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const at::Tensor& weight, const at::Tensor& bias,
                               const std::optional<at::Tensor>& branch,
                               const std::optional<at::Tensor>& branch_bias, double epsilon,
                               double probability) {
    const int64_t columns = weight.numel();
    const int64_t rows = rows_of(x, columns);
    const DrawnDropout dropout = draw_dropout(branch ? probability : 0, x.device());
    const at::Tensor sum = branch ? at::empty_like(x) : x;
    const at::Tensor out = at::empty_like(x);
    const at::Tensor statistics = at::empty({2, rows}, weight.options());
    const LockstepNormForward arguments{.rows = rows,
                                        .columns = columns,
                                        .type = kernel_type(x),
                                        .epsilon = static_cast<float>(epsilon),
                                        .x = data_of(x),
                                        .branch = branch ? data_of(*branch) : nullptr,
                                        .weight = floats_of(weight),
                                        .bias = floats_of(bias),
                                        .sum = branch ? data_of(sum) : nullptr,
                                        .out = data_of(out),
                                        .mean = floats_of(statistics),
                                        .rstd = floats_of(statistics) + rows,
                                        .dropout = dropout.arguments()};
    call_kernel(x.device(), &LockstepKernels::norm_forward, arguments, "norm_forward");
    context->set_materialize_grads(false);
    context->save_for_backward({sum, statistics, weight, dropout.state});
    context->saved_data["branch"] = branch.has_value();
    context->saved_data["branch_bias"] = branch_bias.has_value();
    context->saved_data["probability"] = dropout.probability;
    context->saved_data["site"] = dropout.site;
    return branch ? variable_list{out, sum} : variable_list{out};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivatives("residual_norm");
    const bool has_branch = context->saved_data["branch"].toBool();
    const at::Tensor grad_sum = has_branch ? gradients[1] : at::Tensor();
    if (!gradients[0].defined() && !grad_sum.defined()) {
      return variable_list(kArguments);
    }
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& sum = saved[0];
    const bool wants_branch = has_branch && context->needs_input_grad(kBranch);
    const bool wants_branch_bias =
        context->saved_data["branch_bias"].toBool() && context->needs_input_grad(kBranchBias);
    const DrawnDropout dropout{.probability = context->saved_data["probability"].toDouble(),
                               .site = context->saved_data["site"].toInt(),
                               .state = saved[3]};
    const bool drops = dropout.probability > 0;
    const Gradients found = differentiate(
        saved, dropout,
        {.out = gradients[0].defined() ? gradients[0].contiguous() : at::zeros_like(sum),
         .sum = grad_sum.defined() ? grad_sum.contiguous() : grad_sum,
         .branch = drops && wants_branch ? at::empty_like(sum) : at::Tensor(),
         .branch_bias = wants_branch_bias ? at::empty_like(saved[2]) : at::Tensor()});
    const auto if_needed = [&](size_t index, const at::Tensor& gradient) {
      return context->needs_input_grad(index) ? gradient : at::Tensor();
    };
    return {if_needed(0, found.x),
            if_needed(1, found.weight),
            if_needed(2, found.bias),
            wants_branch ? (drops ? found.branch : found.x) : at::Tensor(),
            found.branch_bias,
            {},
            {}};
  }

 private:
  static constexpr size_t kArguments = 7;
  static constexpr size_t kBranch = 3;
  static constexpr size_t kBranchBias = 4;

  struct Given {
    at::Tensor out;
    at::Tensor sum;          // may be undefined
    at::Tensor branch;       // to be filled, if defined
    at::Tensor branch_bias;  // to be filled, if defined
  };
  struct Gradients {
    at::Tensor x;
    at::Tensor weight;
    at::Tensor bias;
    at::Tensor branch;
    at::Tensor branch_bias;
  };
  static Gradients differentiate(const variable_list& saved, const DrawnDropout& dropout,
                                 const Given& given) {
    const at::Tensor& sum = saved[0];
    const at::Tensor& weight = saved[2];
    const int64_t columns = weight.numel();
    const int64_t rows = rows_of(sum, columns);
    const at::Device device = sum.device();
    const Gradients result{.x = at::empty_like(sum),
                           .weight = at::empty_like(weight),
                           .bias = at::empty_like(weight),
                           .branch = given.branch,
                           .branch_bias = given.branch_bias};
    const at::Tensor scratch =
        scratch_of(device, kernels_of(device).norm_scratch_bytes(rows, columns));
    const LockstepNormBackward arguments{.rows = rows,
                                         .columns = columns,
                                         .type = kernel_type(sum),
                                         .accumulate = 0,
                                         .grad_out = data_of(given.out),
                                         .grad_sum = data_of(given.sum),
                                         .sum = data_of(sum),
                                         .mean = floats_of(saved[1]),
                                         .rstd = floats_of(saved[1]) + rows,
                                         .weight = floats_of(weight),
                                         .grad_x = data_of(result.x),
                                         .grad_branch = data_of(result.branch),
                                         .grad_weight = floats_of(result.weight),
                                         .grad_bias = floats_of(result.bias),
                                         .grad_branch_bias = floats_of(result.branch_bias),
                                         .dropout = dropout.arguments(),
                                         .scratch = data_of(scratch)};
    call_kernel(device, &LockstepKernels::norm_backward, arguments, "norm_backward");
    return result;
  }
};

}  // namespace

NormOutput residual_norm(const NormInput& input) {
  const at::Tensor x = input.x.contiguous();
  const bool has_branch = input.branch.defined();
  LOCKSTEP_CHECK(!has_branch || input.branch.sizes() == x.sizes(),
                 "the branch has not the shape of what it is added to");
  LOCKSTEP_CHECK(input.weight.numel() == input.bias.numel() &&
                     (!input.branch_bias.defined() ||
                      (has_branch && input.branch_bias.numel() == input.weight.numel())),
                 "the parameters of a norm have {} and {} elements", input.weight.numel(),
                 input.bias.numel());
  const at::Tensor branch =
      has_branch ? input.branch.to(x.scalar_type()).contiguous() : input.branch;
  const variable_list results =
      FusedNorm::apply(x, input.weight.contiguous(), input.bias.contiguous(), if_defined(branch),
                       if_defined(input.branch_bias), input.epsilon, input.dropout);
  return {.sum = has_branch ? results[1] : x, .out = results[0]};
}

}  // namespace lockstep::device

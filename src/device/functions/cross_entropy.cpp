#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <lockstep/base/error.h>

#include "device/functions/call.h"
#include "device/functions/functions.h"
#include "device/kernels.h"

namespace lockstep::device {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The gradient of the logits, until a backward pass takes it.
struct KeptGradient : torch::CustomClassHolder {
  at::Tensor gradient;
  int64_t count = 0;  // of its elements, with those between rows
};

// Rows of adjacent elements that do not overlap.
bool has_whole_rows(const at::Tensor& logits) {
  return (logits.stride(1) == 1 || logits.size(1) == 1) && logits.stride(0) >= logits.size(1);
}

// Whether the elements between rows, those after the last one too, are in the memory of the logits.
bool has_room_between_rows(const at::Tensor& logits) {
  const auto end = static_cast<size_t>(logits.storage_offset() + logits.size(0) * logits.stride(0));
  return end * logits.element_size() <= logits.storage().nbytes();
}

class FusedCrossEntropy : public torch::autograd::Function<FusedCrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& labels, int64_t ignored, bool consumes,
                            bool wants_gradient) {
    at::Tensor memory = logits.detach();
    if (!has_whole_rows(memory)) {
      memory = memory.contiguous();
      consumes = consumes && !memory.is_alias_of(logits);
    }
    if (wants_gradient && !(consumes && has_room_between_rows(memory))) {
      memory = memory.clone(at::MemoryFormat::Contiguous);
    }
    const at::TensorOptions floats = memory.options().dtype(at::kFloat);
    const at::Tensor losses = at::empty({memory.size(0)}, floats);
    const at::Tensor result = at::empty({2}, floats);
    const LockstepCrossEntropy arguments{.rows = memory.size(0),
                                         .classes = memory.size(1),
                                         .stride = memory.stride(0),
                                         .type = kernel_type(memory),
                                         .gradient = wants_gradient ? 1 : 0,
                                         .ignored = ignored,
                                         .logits = memory.data_ptr(),
                                         .labels = labels.const_data_ptr<int64_t>(),
                                         .scale = nullptr,
                                         .losses = floats_of(losses),
                                         .result = floats_of(result)};
    call_kernel(memory.device(), &LockstepKernels::cross_entropy, arguments, "cross_entropy");
    if (wants_gradient) {
      // Whoever saved the logits for a gradient of his own is told that they are gone.
      memory.unsafeGetTensorImpl()->bump_version();
      auto kept = c10::make_intrusive<KeptGradient>();
      kept->count = memory.size(0) * memory.stride(0);
      kept->gradient = std::move(memory);
      context->saved_data["gradient"] =
          c10::IValue::make_capsule(c10::intrusive_ptr<torch::CustomClassHolder>(kept));
    }
    // Not a view, which autograd would follow.
    return at::empty({0}, floats).set_(result.storage(), 0, {}, {});
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivatives("cross_entropy");
    const auto kept = c10::static_intrusive_pointer_cast<KeptGradient>(
        context->saved_data["gradient"].toCapsule());
    const at::Tensor gradient = std::move(kept->gradient);
    kept->gradient.reset();
    if (!gradient.defined()) {
      throw UsageError(
          "cross_entropy: a second backward pass through one loss: the first one has given the "
          "gradient of the logits away; compute the loss again, or add what you need of it to one "
          "loss");
    }
    const at::Tensor factor = gradients[0].contiguous();
    const LockstepScale arguments{.count = kept->count,
                                  .type = kernel_type(gradient),
                                  .data = gradient.data_ptr(),
                                  .factor = floats_of(factor)};
    call_kernel(gradient.device(), &LockstepKernels::scale, arguments, "scale");
    return {gradient, {}, {}, {}, {}};
  }
};

}  // namespace

bool is_last_owner(const at::Tensor& x) {
  return x.use_count() == 1 && x.storage().use_count() == 1;
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                         const CrossEntropyOptions& options) {
  LOCKSTEP_CHECK(logits.dim() == 2 && labels.dim() == 1 && labels.size(0) == logits.size(0) &&
                     labels.scalar_type() == at::kLong && logits.size(1) > 0,
                 "cross entropy of logits with {} dimensions and {} labels of {}", logits.dim(),
                 labels.numel(), toString(labels.scalar_type()));
  return FusedCrossEntropy::apply(logits, labels.contiguous(), options.ignored, options.consumes,
                                  at::GradMode::is_enabled() && logits.requires_grad());
}

}  // namespace lockstep::device

// Shapes: R rows, E hidden size, V words, S words with those that pad.
#include <ATen/ops/addmm.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <lockstep/base/error.h>

#include "device/functions/call.h"
#include "device/functions/functions.h"

namespace lockstep::device {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kTile = 64;  // words: whole tiles of the matrix products

// Copies `from` and adds zeros to its first dimension.
at::Tensor padded_copy(const at::Tensor& from, int64_t size, at::ScalarType type) {
  std::vector<int64_t> sizes = from.sizes().vec();
  sizes[0] = size;
  at::Tensor to = at::empty(sizes, from.options().dtype(type));
  to.narrow(0, 0, from.size(0)).copy_(from);
  to.narrow(0, from.size(0), size - from.size(0)).zero_();
  return to;
}

// The memory of the result, without keeping it. What is between its rows is zeros, or as finite as
// the result: the products of the padding.
struct ResultMemory : torch::CustomClassHolder {
  explicit ResultMemory(const c10::Storage& storage) : memory(storage.getWeakStorageImpl()) {}

  // It was not made anew: a weak pointer keeps another one from being at its address.
  bool is_of(const at::Tensor& gradient) const {
    return gradient.storage().unsafeGetStorageImpl() == memory._unsafe_get_target();
  }

  c10::weak_intrusive_ptr<c10::StorageImpl> memory;
};

// The gradient with its rows padded by zeros. That of cross_entropy() is so already.
at::Tensor padded_gradient(const at::Tensor& gradient, int64_t size, const ResultMemory& result) {
  const int64_t words = gradient.size(-1);
  const at::Tensor flat_RV = gradient.reshape({-1, words});
  if (size == words) {
    return flat_RV.contiguous();
  }
  if (result.is_of(flat_RV) && flat_RV.storage_offset() == 0 && flat_RV.stride(0) == size &&
      flat_RV.stride(1) == 1) {
    return flat_RV.as_strided({flat_RV.size(0), size}, {size, 1});
  }
  at::Tensor to_RS = at::empty({flat_RV.size(0), size}, gradient.options());
  to_RS.narrow(1, 0, words).copy_(flat_RV);
  to_RS.narrow(1, words, size - words).zero_();
  return to_RS;
}

class PaddedVocabulary : public torch::autograd::Function<PaddedVocabulary> {
 public:
  // `x` is contiguous, of the type to compute in.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight_VE, const std::optional<at::Tensor>& bias_V) {
    const int64_t words = weight_VE.size(0);
    const int64_t size = (words + kTile - 1) / kTile * kTile;
    const at::Tensor x_RE = x.view({-1, weight_VE.size(1)});
    const at::Tensor weight_SE = padded_copy(weight_VE, size, x.scalar_type());
    const at::Tensor logits_RS =
        bias_V ? at::addmm(padded_copy(*bias_V, size, x.scalar_type()), x_RE, weight_SE.t())
               : at::mm(x_RE, weight_SE.t());
    context->set_materialize_grads(false);
    context->save_for_backward({x_RE, weight_SE});
    context->saved_data["words"] = words;
    context->saved_data["bias"] = bias_V.has_value();
    context->saved_data["memory"] =
        c10::IValue::make_capsule(c10::intrusive_ptr<torch::CustomClassHolder>(
            c10::make_intrusive<ResultMemory>(logits_RS.storage())));
    // Not a view, whose base would count as another owner of the memory.
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = words;
    std::vector<int64_t> strides(sizes.size(), 1);
    int64_t stride = size;
    for (size_t i = sizes.size() - 1; i-- > 0; stride *= sizes[i]) {
      strides[i] = stride;
    }
    return at::empty({0}, logits_RS.options()).set_(logits_RS.storage(), 0, sizes, strides);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivatives("vocabulary_linear");
    if (!gradients[0].defined()) {
      return variable_list(3);
    }
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x_RE = saved[0];
    const at::Tensor& weight_SE = saved[1];
    const int64_t words = context->saved_data["words"].toInt();
    const auto memory =
        c10::static_intrusive_pointer_cast<ResultMemory>(context->saved_data["memory"].toCapsule());
    const at::Tensor gradient_RS = padded_gradient(gradients[0], weight_SE.size(0), *memory);
    variable_list results(3);
    if (context->needs_input_grad(0)) {
      std::vector<int64_t> sizes = gradients[0].sizes().vec();
      sizes.back() = x_RE.size(1);
      results[0] = at::mm(gradient_RS, weight_SE).view(sizes);
    }
    if (context->needs_input_grad(1)) {
      results[1] = at::mm(gradient_RS.t(), x_RE).narrow(0, 0, words).to(at::kFloat);
    }
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(2)) {
      results[2] = gradient_RS.sum({0}, /*keepdim=*/false, at::kFloat).narrow(0, 0, words);
    }
    return results;
  }
};

}  // namespace

at::Tensor vocabulary_linear(const VocabularyInput& input) {
  LOCKSTEP_CHECK(input.weight.dim() == 2 && input.x.size(-1) == input.weight.size(1) &&
                     (!input.bias.defined() || input.bias.numel() == input.weight.size(0)),
                 "rows of {} elements for a vocabulary of {} words", input.x.size(-1),
                 input.weight.size(0));
  return PaddedVocabulary::apply(input.x.to(input.type).contiguous(), input.weight,
                                 if_defined(input.bias));
}

}  // namespace lockstep::device

// Shapes: B batch, T time, E hidden size, N heads, D size of a head, C channels, H W a picture's.
#include "models/layers.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

namespace lockstep::models::layers {

LinearImpl::LinearImpl(int64_t in, int64_t out)
    : weight_(register_parameter("weight", at::empty({out, in}))),
      bias_(register_parameter("bias", at::empty({out}))) {}

at::Tensor LinearImpl::forward(const at::Tensor& x) const {
  return at::linear(x, weight_, bias_);
}

Conv1DImpl::Conv1DImpl(int64_t in, int64_t out)
    : weight_(register_parameter("weight", at::empty({in, out}))),
      bias_(register_parameter("bias", at::empty({out}))) {}

at::Tensor Conv1DImpl::forward(const at::Tensor& x) const {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight_.size(1);
  return at::addmm(bias_, x.flatten(0, -2), weight_).view(sizes);
}

Conv2dImpl::Conv2dImpl(int64_t in, int64_t out, int64_t kernel_size, int64_t stride)
    : weight_(register_parameter("weight", at::empty({out, in, kernel_size, kernel_size}))),
      stride_(stride),
      padding_(kernel_size / 2) {}

at::Tensor Conv2dImpl::forward(const at::Tensor& x_BCHW) const {
  return at::conv2d(x_BCHW, weight_, {}, stride_, padding_);
}

LayerNormImpl::LayerNormImpl(int64_t size, double eps)
    : weight_(register_parameter("weight", at::empty({size}))),
      bias_(register_parameter("bias", at::empty({size}))),
      eps_(eps) {}

at::Tensor LayerNormImpl::forward(const at::Tensor& x) const {
  return at::layer_norm(x, weight_.sizes(), weight_, bias_, eps_);
}

EmbeddingImpl::EmbeddingImpl(int64_t num_rows, int64_t size, int64_t padding)
    : weight_(register_parameter("weight", at::empty({num_rows, size}))), padding_(padding) {}

at::Tensor EmbeddingImpl::forward(const at::Tensor& ids) const {
  return at::embedding(weight_, ids, padding_);
}

at::Tensor activate(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::Gelu:
      return at::gelu(x);
    case Activation::GeluTanh:
      return at::gelu(x, "tanh");
    case Activation::Relu:
      return at::relu(x);
  }
  LOCKSTEP_CHECK(false, "activation {}", static_cast<int>(activation));
}

at::Tensor attend(const at::Tensor& query_BTE, const at::Tensor& key_BTE,
                  const at::Tensor& value_BTE, const AttentionOptions& options) {
  const auto split = [&](const at::Tensor& x_BTE) {
    return x_BTE.unflatten(-1, {options.num_heads, -1}).transpose(1, 2);
  };
  const std::optional<at::Tensor> mask =
      options.mask.defined() ? std::optional(options.mask) : std::nullopt;
  const at::Tensor mixed_BNTD = at::scaled_dot_product_attention(
      split(query_BTE), split(key_BTE), split(value_BTE), mask, options.dropout, options.causal);
  return mixed_BNTD.transpose(1, 2).flatten(-2);
}

void check_ids(const char* model, const at::Tensor& ids_BT, int64_t max_positions) {
  if (!ids_BT.defined() || ids_BT.dim() != 2 || ids_BT.scalar_type() != at::kLong) {
    throw UsageError("{}: the ids must be int64 [batch, time], and they are {}", model,
                     ids_BT.defined() ? fmt::format("{} [{}]", toString(ids_BT.scalar_type()),
                                                    fmt::join(ids_BT.sizes(), ", "))
                                      : "undefined");
  }
  if (max_positions > 0 && ids_BT.size(1) > max_positions) {
    throw UsageError("{}: a sequence has {} tokens, the model has positions for {}; cut it", model,
                     ids_BT.size(1), max_positions);
  }
}

at::Tensor positions_of(const at::Tensor& ids_BT) {
  return at::arange(ids_BT.size(1), ids_BT.options());
}

}  // namespace lockstep::models::layers

// Shapes: B batch, T time, E hidden size, N heads, D size of a head, C channels, H W a picture's.
#include "models/layers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "device/functions/functions.h"

namespace lockstep::models::layers {

namespace {

// The values, with a bias that has its gradient from them.
at::Tensor whole(const Projected& projected) {
  const auto& [values, bias] = projected;
  return bias.defined() ? values + (bias - bias.detach()).to(values.scalar_type()) : values;
}

}  // namespace

AffineImpl::AffineImpl(at::IntArrayRef weight_sizes, int64_t out)
    : weight_(register_parameter("weight", at::empty(weight_sizes))),
      bias_(register_parameter("bias", at::empty({out}))) {}

Projected AffineImpl::project(const at::Tensor& x) const {
  return device::function_type(x, {weight_, bias_})
             ? Projected{.values = product(x, bias_.detach()), .bias = bias_}
             : Projected{.values = product(x, bias_)};
}

at::Tensor LinearImpl::product(const at::Tensor& x, const at::Tensor& bias) const {
  return at::linear(x, weight_, bias);
}

at::Tensor Conv1DImpl::product(const at::Tensor& x, const at::Tensor& bias) const {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight_.size(1);
  return at::addmm(bias, x.flatten(0, -2), weight_).view(sizes);
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

NormedSum LayerNormImpl::of_sum(const Residual& residual) const {
  const auto& [x, branch, dropout] = residual;
  const auto type = device::function_type(x, {weight_, bias_, branch.bias});
  if (type && dropout <= device::kMostDropout) {
    auto [sum, out] = device::residual_norm({.x = x.to(*type),
                                             .branch = branch.values,
                                             .branch_bias = branch.bias,
                                             .weight = weight_,
                                             .bias = bias_,
                                             .epsilon = eps_,
                                             .dropout = dropout});
    return {.sum = std::move(sum), .normed = std::move(out)};
  }
  const at::Tensor sum =
      branch.values.defined() ? x + at::dropout(whole(branch), dropout, dropout > 0) : x;
  return {.sum = sum, .normed = at::layer_norm(sum, weight_.sizes(), weight_, bias_, eps_)};
}

EmbeddingImpl::EmbeddingImpl(int64_t num_rows, int64_t size, int64_t padding)
    : weight_(register_parameter("weight", at::empty({num_rows, size}))), padding_(padding) {}

at::Tensor EmbeddingImpl::forward(const at::Tensor& ids) const {
  return at::embedding(weight_, ids, padding_);
}

at::Tensor embed(const at::Tensor& ids_BT, const Tables& tables) {
  const auto& [tokens, positions, segments, segment_ids, dropout] = tables;
  const auto weight_of = [](const EmbeddingImpl* table) {
    return table != nullptr ? table->weight() : at::Tensor();
  };
  const auto type = device::function_type(
      tokens.weight(), {tokens.weight(), weight_of(positions), weight_of(segments)});
  if (type && dropout <= device::kMostDropout) {
    return device::embedding(ids_BT, {.tokens = tokens.weight(),
                                      .positions = weight_of(positions),
                                      .segments = weight_of(segments),
                                      .segment_ids = segment_ids,
                                      .padding = tokens.padding(),
                                      .dropout = dropout,
                                      .type = *type});
  }
  at::Tensor x_BTE = tokens.forward(ids_BT);
  if (segments != nullptr) {
    x_BTE = x_BTE + segments->forward(segment_ids);
  }
  if (positions != nullptr) {
    x_BTE = x_BTE + positions->forward(at::arange(ids_BT.size(1), ids_BT.options()));
  }
  return at::dropout(x_BTE, dropout, dropout > 0);
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

at::Tensor activate(const AffineImpl& layer, const at::Tensor& x, Activation activation) {
  if (activation == Activation::Relu) {
    return at::relu(layer.forward(x));
  }
  const Projected projected = layer.project(x);
  if (!projected.bias.defined()) {
    return activate(projected.values, activation);
  }
  const auto form = activation == Activation::Gelu ? device::GeluForm::Erf : device::GeluForm::Tanh;
  return device::gelu(projected.values, form, projected.bias);
}

at::Tensor word_scores(const at::Tensor& x_BTE, const at::Tensor& weight_VE,
                       const at::Tensor& bias_V) {
  const auto type = device::function_type(x_BTE, {weight_VE, bias_V});
  // The copies of the weight pay where there is a backward pass.
  if (type && at::GradMode::is_enabled()) {
    return device::vocabulary_linear(
        {.x = x_BTE, .weight = weight_VE, .bias = bias_V, .type = *type});
  }
  return bias_V.defined() ? at::linear(x_BTE, weight_VE, bias_V) : at::linear(x_BTE, weight_VE);
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

}  // namespace lockstep::models::layers

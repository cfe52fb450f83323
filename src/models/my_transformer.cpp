// Shapes: B batch, T time, E hidden size, V vocabulary.
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include <lockstep/models/my_transformer.h>

#include "device/functions/functions.h"
#include "models/init.h"
#include "models/layers.h"

namespace lockstep {
namespace models::layers {

// Attention with the names of nn.MultiheadAttention: one weight makes queries, keys and values.
class SelfAttention : public torch::nn::Module {
 public:
  explicit SelfAttention(const MyTransformerOptions& options) : options_(options) {
    const int64_t size = options.hidden_size;
    in_weight_ = register_parameter("in_proj_weight", at::empty({3 * size, size}));
    in_bias_ = register_parameter("in_proj_bias", at::empty({3 * size}));
    out_proj_ = register_module("out_proj", Linear(size, size));
  }

  Projected forward(const at::Tensor& x_BTE) {
    const auto qkv_BTE = at::linear(x_BTE, in_weight_, in_bias_).chunk(3, -1);
    const at::Tensor mixed_BTE = attend(qkv_BTE[0], qkv_BTE[1], qkv_BTE[2],
                                        {.num_heads = options_.num_heads,
                                         .dropout = is_training() ? options_.dropout : 0,
                                         .causal = true});
    return out_proj_->project(mixed_BTE);
  }

 private:
  MyTransformerOptions options_;
  at::Tensor in_weight_, in_bias_;
  Linear out_proj_{nullptr};
};

class PreNormBlock : public torch::nn::Module {
 public:
  explicit PreNormBlock(const MyTransformerOptions& options) : dropout_(options.dropout) {
    const int64_t size = options.hidden_size;
    self_attn_ = register_module("self_attn", std::make_shared<SelfAttention>(options));
    linear1_ = register_module("linear1", Linear(size, options.ffn_size));
    linear2_ = register_module("linear2", Linear(options.ffn_size, size));
    norm1_ = register_module("norm1", LayerNorm(size, options.layer_norm_eps));
    norm2_ = register_module("norm2", LayerNorm(size, options.layer_norm_eps));
  }

  // The last branch is left to be added: the next norm does it in one pass.
  Residual forward(const Residual& before_BTE) {
    const double dropout = is_training() ? dropout_ : 0;
    const NormedSum x_BTE = norm1_->of_sum(before_BTE);
    const NormedSum attended_BTE = norm2_->of_sum(
        {.x = x_BTE.sum, .branch = self_attn_->forward(x_BTE.normed), .dropout = dropout});
    const at::Tensor wide_BTF = activate(*linear1_, attended_BTE.normed, Activation::Gelu);
    return {.x = attended_BTE.sum,
            .branch = linear2_->project(at::dropout(wide_BTF, dropout, dropout > 0)),
            .dropout = dropout};
  }

 private:
  double dropout_;
  std::shared_ptr<SelfAttention> self_attn_;
  Linear linear1_{nullptr}, linear2_{nullptr};
  LayerNorm norm1_{nullptr}, norm2_{nullptr};
};

}  // namespace models::layers

MyTransformerImpl::MyTransformerImpl(MyTransformerOptions options)
    : ConfiguredModule({.architecture = "MyTransformer", .options = options}), options_(options) {
  const int64_t size = options.hidden_size;
  embedding_ = register_module(
      "embedding", std::make_shared<models::layers::EmbeddingImpl>(options.vocab_size, size));
  if (options.max_positions > 0) {
    positions_ = register_module(
        "positions", std::make_shared<models::layers::EmbeddingImpl>(options.max_positions, size));
  }
  for (int64_t i = 0; i < options.num_layers; ++i) {
    layers_.push_back(std::make_shared<models::layers::PreNormBlock>(options));
  }
  models::layers::register_list(*this, "layers", layers_);
  norm_ = register_module(
      "norm", std::make_shared<models::layers::LayerNormImpl>(size, options.layer_norm_eps));
  fc_ =
      register_module("fc", std::make_shared<models::layers::LinearImpl>(size, options.vocab_size));
  if (options.initialise) {
    models::initialise(*this, options.seed);
  }
}

at::Tensor MyTransformerImpl::forward(const at::Tensor& ids_BT) {
  models::layers::check_ids("MyTransformer", ids_BT, options_.max_positions);
  const device::SharedDropout shared;
  models::layers::Residual x_BTE{
      .x = models::layers::embed(ids_BT, {.tokens = *embedding_,
                                          .positions = positions_.get(),
                                          .dropout = is_training() ? options_.dropout : 0})};
  for (const auto& layer : layers_) {
    x_BTE = layer->forward(x_BTE);
  }
  const at::Tensor logits_BTV =
      models::layers::word_scores(norm_->of_sum(x_BTE).normed, fc_->weight(), fc_->bias());
  return logits_BTV;
}

}  // namespace lockstep

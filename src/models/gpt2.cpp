// Shapes: B batch, T time, E hidden size, F feed-forward size, V vocabulary.
#include <lockstep/models/gpt2.h>

#include "device/functions/functions.h"
#include "models/init.h"
#include "models/layers.h"

namespace lockstep {
namespace models::layers {

class GPT2Attention : public torch::nn::Module {
 public:
  explicit GPT2Attention(const GPT2Options& options) : options_(options) {
    c_attn_ = register_module("c_attn", Conv1D(options.hidden_size, 3 * options.hidden_size));
    c_proj_ = register_module("c_proj", Conv1D(options.hidden_size, options.hidden_size));
  }

  Projected forward(const at::Tensor& x_BTE) {
    const auto qkv_BTE = c_attn_(x_BTE).chunk(3, -1);
    const at::Tensor mixed_BTE = attend(qkv_BTE[0], qkv_BTE[1], qkv_BTE[2],
                                        {.num_heads = options_.num_heads,
                                         .dropout = is_training() ? options_.attention_dropout : 0,
                                         .causal = true});
    return c_proj_->project(mixed_BTE);
  }

 private:
  GPT2Options options_;
  Conv1D c_attn_{nullptr}, c_proj_{nullptr};
};

class GPT2Mlp : public torch::nn::Module {
 public:
  explicit GPT2Mlp(const GPT2Options& options) : options_(options) {
    c_fc_ = register_module("c_fc", Conv1D(options.hidden_size, options.ffn_size));
    c_proj_ = register_module("c_proj", Conv1D(options.ffn_size, options.hidden_size));
  }

  Projected forward(const at::Tensor& x_BTE) {
    const at::Tensor wide_BTF = activate(*c_fc_, x_BTE, options_.activation);
    return c_proj_->project(wide_BTF);
  }

 private:
  GPT2Options options_;
  Conv1D c_fc_{nullptr}, c_proj_{nullptr};
};

class GPT2Block : public torch::nn::Module {
 public:
  explicit GPT2Block(const GPT2Options& options) : dropout_(options.residual_dropout) {
    ln_1_ = register_module("ln_1", LayerNorm(options.hidden_size, options.layer_norm_eps));
    attn_ = register_module("attn", std::make_shared<GPT2Attention>(options));
    ln_2_ = register_module("ln_2", LayerNorm(options.hidden_size, options.layer_norm_eps));
    mlp_ = register_module("mlp", std::make_shared<GPT2Mlp>(options));
  }

  // The last branch is left to be added: the next norm does it in one pass.
  Residual forward(const Residual& before_BTE) {
    const double dropout = is_training() ? dropout_ : 0;
    const NormedSum x_BTE = ln_1_->of_sum(before_BTE);
    const NormedSum attended_BTE =
        ln_2_->of_sum({.x = x_BTE.sum, .branch = attn_->forward(x_BTE.normed), .dropout = dropout});
    return {
        .x = attended_BTE.sum, .branch = mlp_->forward(attended_BTE.normed), .dropout = dropout};
  }

 private:
  double dropout_;
  LayerNorm ln_1_{nullptr}, ln_2_{nullptr};
  std::shared_ptr<GPT2Attention> attn_;
  std::shared_ptr<GPT2Mlp> mlp_;
};

class GPT2Body : public torch::nn::Module {
 public:
  explicit GPT2Body(const GPT2Options& options) : options_(options) {
    wte_ = register_module("wte", Embedding(options.vocab_size, options.hidden_size));
    wpe_ = register_module("wpe", Embedding(options.max_positions, options.hidden_size));
    for (int64_t i = 0; i < options.num_layers; ++i) {
      h_.push_back(std::make_shared<GPT2Block>(options));
    }
    register_list(*this, "h", h_);
    ln_f_ = register_module("ln_f", LayerNorm(options.hidden_size, options.layer_norm_eps));
  }

  at::Tensor forward(const at::Tensor& ids_BT) {
    check_ids("GPT-2", ids_BT, options_.max_positions);
    const device::SharedDropout shared;
    Residual x_BTE{.x = embed(ids_BT, {.tokens = *wte_,
                                       .positions = wpe_.get(),
                                       .dropout = is_training() ? options_.embedding_dropout : 0})};
    for (const auto& block : h_) {
      x_BTE = block->forward(x_BTE);
    }
    return ln_f_->of_sum(x_BTE).normed;
  }

  const at::Tensor& token_embedding_VE() const { return wte_->weight(); }

 private:
  GPT2Options options_;
  Embedding wte_{nullptr}, wpe_{nullptr};
  std::vector<std::shared_ptr<GPT2Block>> h_;
  LayerNorm ln_f_{nullptr};
};

}  // namespace models::layers

GPT2Impl::GPT2Impl(GPT2Options options)
    : ConfiguredModule({.architecture = "GPT2LMHeadModel", .options = options}),
      transformer_(
          register_module("transformer", std::make_shared<models::layers::GPT2Body>(options))) {
  if (options.initialise) {
    models::initialise(*this, options.seed);
  }
}

at::Tensor GPT2Impl::forward(const at::Tensor& ids_BT) {
  const at::Tensor hidden_BTE = transformer_->forward(ids_BT);
  const at::Tensor logits_BTV =
      models::layers::word_scores(hidden_BTE, transformer_->token_embedding_VE());
  return logits_BTV;
}

}  // namespace lockstep

// Shapes: B batch, T time, E hidden size, F feed-forward size, V vocabulary.
#include "models/bert_layers.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tanh.h>

namespace lockstep::models::layers {

BertEmbeddings::BertEmbeddings(const BertOptions& options) : dropout_(options.hidden_dropout) {
  const int64_t size = options.hidden_size;
  word_embeddings_ =
      register_module("word_embeddings", Embedding(options.vocab_size, size, options.pad_token));
  position_embeddings_ =
      register_module("position_embeddings", Embedding(options.max_positions, size));
  token_type_embeddings_ =
      register_module("token_type_embeddings", Embedding(options.num_token_types, size));
  norm_ = register_module("LayerNorm", LayerNorm(size, options.layer_norm_eps));
}

at::Tensor BertEmbeddings::forward(const at::Tensor& ids_BT, const at::Tensor& token_types_BT) {
  const at::Tensor x_BTE = embed(ids_BT, {.tokens = *word_embeddings_,
                                          .positions = position_embeddings_.get(),
                                          .segments = token_type_embeddings_.get(),
                                          .segment_ids = token_types_BT});
  return at::dropout(norm_(x_BTE), dropout_, is_training());
}

namespace {

class BertSelfAttention : public torch::nn::Module {
 public:
  explicit BertSelfAttention(const BertOptions& options) : options_(options) {
    const int64_t size = options.hidden_size;
    query_ = register_module("query", Linear(size, size));
    key_ = register_module("key", Linear(size, size));
    value_ = register_module("value", Linear(size, size));
  }

  at::Tensor forward(const at::Tensor& x_BTE, const at::Tensor& mask) {
    return attend(query_(x_BTE), key_(x_BTE), value_(x_BTE),
                  {.num_heads = options_.num_heads,
                   .dropout = is_training() ? options_.attention_dropout : 0,
                   .mask = mask});
  }

 private:
  BertOptions options_;
  Linear query_{nullptr}, key_{nullptr}, value_{nullptr};
};

// The end of both halves of a layer: a linear layer, the sum, the norm of the sum (post-norm).
class BertSum : public torch::nn::Module {
 public:
  BertSum(int64_t in, const BertOptions& options) : dropout_(options.hidden_dropout) {
    dense_ = register_module("dense", Linear(in, options.hidden_size));
    norm_ = register_module("LayerNorm", LayerNorm(options.hidden_size, options.layer_norm_eps));
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual_BTE) {
    return norm_
        ->of_sum({.x = residual_BTE,
                  .branch = dense_->project(x),
                  .dropout = is_training() ? dropout_ : 0})
        .normed;
  }

 private:
  double dropout_;
  Linear dense_{nullptr};
  LayerNorm norm_{nullptr};
};

class BertAttention : public torch::nn::Module {
 public:
  explicit BertAttention(const BertOptions& options) {
    self_ = register_module("self", std::make_shared<BertSelfAttention>(options));
    output_ = register_module("output", std::make_shared<BertSum>(options.hidden_size, options));
  }

  at::Tensor forward(const at::Tensor& x_BTE, const at::Tensor& mask) {
    return output_->forward(self_->forward(x_BTE, mask), x_BTE);
  }

 private:
  std::shared_ptr<BertSelfAttention> self_;
  std::shared_ptr<BertSum> output_;
};

class BertIntermediate : public torch::nn::Module {
 public:
  explicit BertIntermediate(const BertOptions& options) : activation_(options.activation) {
    dense_ = register_module("dense", Linear(options.hidden_size, options.ffn_size));
  }

  at::Tensor forward(const at::Tensor& x_BTE) { return activate(*dense_, x_BTE, activation_); }

 private:
  Activation activation_;
  Linear dense_{nullptr};
};

}  // namespace

class BertLayer : public torch::nn::Module {
 public:
  explicit BertLayer(const BertOptions& options) {
    attention_ = register_module("attention", std::make_shared<BertAttention>(options));
    intermediate_ = register_module("intermediate", std::make_shared<BertIntermediate>(options));
    output_ = register_module("output", std::make_shared<BertSum>(options.ffn_size, options));
  }

  at::Tensor forward(const at::Tensor& x_BTE, const at::Tensor& mask) {
    const at::Tensor attended_BTE = attention_->forward(x_BTE, mask);
    const at::Tensor wide_BTF = intermediate_->forward(attended_BTE);
    return output_->forward(wide_BTF, attended_BTE);
  }

 private:
  std::shared_ptr<BertAttention> attention_;
  std::shared_ptr<BertIntermediate> intermediate_;
  std::shared_ptr<BertSum> output_;
};

BertEncoder::BertEncoder(const BertOptions& options) {
  for (int64_t i = 0; i < options.num_layers; ++i) {
    layers_.push_back(std::make_shared<BertLayer>(options));
  }
  register_list(*this, "layer", layers_);
}

at::Tensor BertEncoder::forward(at::Tensor x_BTE, const at::Tensor& mask) {
  for (const auto& layer : layers_) {
    x_BTE = layer->forward(x_BTE, mask);
  }
  return x_BTE;
}

BertPoolerLayer::BertPoolerLayer(const BertOptions& options)
    : dense_(register_module("dense", Linear(options.hidden_size, options.hidden_size))) {}

at::Tensor BertPoolerLayer::forward(const at::Tensor& hidden_BTE) {
  return at::tanh(dense_(hidden_BTE.select(1, 0)));
}

class BertHead::Predictions : public torch::nn::Module {
 public:
  explicit Predictions(const BertOptions& options) : activation_(options.activation) {
    const int64_t size = options.hidden_size;
    bias_ = register_parameter("bias", at::empty({options.vocab_size}));
    const auto transform = register_module("transform", std::make_shared<torch::nn::Module>());
    dense_ = transform->register_module("dense", Linear(size, size));
    norm_ = transform->register_module("LayerNorm", LayerNorm(size, options.layer_norm_eps));
  }

  at::Tensor forward(const at::Tensor& hidden_BTE, const at::Tensor& word_embedding_VE) {
    const at::Tensor words_BTE = norm_(activate(*dense_, hidden_BTE, activation_));
    return word_scores(words_BTE, word_embedding_VE, bias_);
  }

 private:
  Activation activation_;
  at::Tensor bias_;
  Linear dense_{nullptr};
  LayerNorm norm_{nullptr};
};

BertHead::BertHead(const BertOptions& options)
    : predictions_(register_module("predictions", std::make_shared<Predictions>(options))) {}

at::Tensor BertHead::forward(const at::Tensor& hidden_BTE, const at::Tensor& word_embedding_VE) {
  return predictions_->forward(hidden_BTE, word_embedding_VE);
}

}  // namespace lockstep::models::layers

#pragma once

// What BERT is made of, with transformers' names.

#include <memory>
#include <vector>

#include <lockstep/models/bert.h>

#include "models/layers.h"

namespace lockstep::models::layers {

class BertEmbeddings : public torch::nn::Module {
 public:
  explicit BertEmbeddings(const BertOptions& options);
  at::Tensor forward(const at::Tensor& ids_BT, const at::Tensor& token_types_BT);
  const at::Tensor& word_embedding_VE() const { return word_embeddings_->weight(); }

 private:
  double dropout_;
  Embedding word_embeddings_{nullptr}, position_embeddings_{nullptr};
  Embedding token_type_embeddings_{nullptr};
  LayerNorm norm_{nullptr};
};

class BertLayer;

class BertEncoder : public torch::nn::Module {
 public:
  explicit BertEncoder(const BertOptions& options);
  // `mask`: as in AttentionOptions.
  at::Tensor forward(at::Tensor x_BTE, const at::Tensor& mask);

 private:
  std::vector<std::shared_ptr<BertLayer>> layers_;
};

class BertPoolerLayer : public torch::nn::Module {
 public:
  explicit BertPoolerLayer(const BertOptions& options);
  at::Tensor forward(const at::Tensor& hidden_BTE);

 private:
  Linear dense_{nullptr};
};

// From hidden states to a score for every word; the last layer's weight is the word embedding.
class BertHead : public torch::nn::Module {
 public:
  explicit BertHead(const BertOptions& options);
  at::Tensor forward(const at::Tensor& hidden_BTE, const at::Tensor& word_embedding_VE);

 private:
  class Predictions;
  std::shared_ptr<Predictions> predictions_;
};

}  // namespace lockstep::models::layers

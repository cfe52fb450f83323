#pragma once

// BERT: embeddings, masked language model, sequence classification.
//
//   lockstep::BertForSequenceClassification model(options);
//   auto logits = model(lockstep::BertInput{.ids_BT = ids, .attention_mask_BT = mask});
//   torch::cross_entropy_loss(logits, labels).backward();
//
//   auto vectors = bert->embed({.ids_BT = ids, .attention_mask_BT = mask});   // of sentences
//
// transformers' BertModel, BertForMaskedLM and BertForSequenceClassification: the same names, the
// same numbers. Of the tied weights the first name is a parameter here
// (`bert.embeddings.word_embeddings.weight`, `cls.predictions.bias`), the second one
// (`cls.predictions.decoder.*`) is not.
//
// First weights: normal with standard deviation initializer_range, biases 0, LayerNorm 1 and 0, the
// padding token's embedding 0. The three classes share them: the same seed gives the same backbone.
//
// Threads: as torch::nn::Module, one at a time.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <lockstep/models/configured_module.h>
#include <lockstep/models/loss.h>

namespace lockstep {

namespace models::layers {
class BertEmbeddings;
class BertEncoder;
class BertPoolerLayer;
class BertHead;
class LinearImpl;
}  // namespace models::layers

struct BertInput {
  at::Tensor ids_BT;             // REQUIRED: int64 [batch, time], at most max_positions long
  at::Tensor attention_mask_BT;  // 1 (or true) for tokens, 0 for padding; undefined: all are tokens
  at::Tensor token_types_BT;  // int64, 0 for the first and 1 for the second sentence; undefined: 0
};

struct BertOutput {
  at::Tensor hidden_BTE;  // [batch, time, hidden_size]
  at::Tensor pooled_BE;   // tanh of a layer on the first token; undefined without a pooler
};

// For DistributedDataParallel, which looks for tensors in what forward() returns.
void append_tensors(const BertOutput& output, std::vector<at::Tensor>& tensors);

enum class BertPooler { FirstToken, None };

// Also the body of the other two.
class BertImpl : public ConfiguredModule {
 public:
  // Throws UsageError when an option is out of range.
  explicit BertImpl(BertOptions options = {}, BertPooler pooler = BertPooler::FirstToken);

  // Throws UsageError if the input's shapes do not go together.
  BertOutput forward(const BertInput& input);

  // One vector of length 1 per sequence: the mean of its tokens' last hidden states, as
  // all-MiniLM-L6-v2 and its kin were trained to give. [batch, hidden_size].
  at::Tensor embed(const BertInput& input);

  const at::Tensor& word_embedding_VE() const;

 private:
  BertOptions options_;
  std::shared_ptr<models::layers::BertEmbeddings> embeddings_;
  std::shared_ptr<models::layers::BertEncoder> encoder_;
  std::shared_ptr<models::layers::BertPoolerLayer> pooler_;
};
TORCH_MODULE(Bert);

class BertForMaskedLMImpl : public ConfiguredModule {
 public:
  explicit BertForMaskedLMImpl(BertOptions options = {});

  // -> logits [batch, time, vocab_size]
  at::Tensor forward(const BertInput& input);

 private:
  std::shared_ptr<BertImpl> bert_;
  std::shared_ptr<models::layers::BertHead> cls_;
};
TORCH_MODULE(BertForMaskedLM);

class BertForSequenceClassificationImpl : public ConfiguredModule {
 public:
  explicit BertForSequenceClassificationImpl(BertOptions options = {});

  // -> logits [batch, num_labels]
  at::Tensor forward(const BertInput& input);

 private:
  std::shared_ptr<BertImpl> bert_;
  std::shared_ptr<models::layers::LinearImpl> classifier_;
  double dropout_;
};
TORCH_MODULE(BertForSequenceClassification);

}  // namespace lockstep

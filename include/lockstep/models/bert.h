#pragma once

// BERT: embeddings, the masked language model and sequence classification.
//
// Example:
//   lockstep::BertOptions options{.num_labels = 3};
//   lockstep::BertForSequenceClassification classifier(options);
//   auto logits = classifier(lockstep::BertInput{.ids_BT = ids, .attention_mask_BT = mask});
//   torch::cross_entropy_loss(logits, labels).backward();
//
//   lockstep::Bert bert(options);
//   auto sentence_vectors = bert->embed({.ids_BT = ids, .attention_mask_BT = mask});
//
// The classes are transformers' BertModel, BertForMaskedLM and BertForSequenceClassification, with
// the same names and the same numbers. Of tied weights the first name is a parameter here
// (`bert.embeddings.word_embeddings.weight`, `cls.predictions.bias`), and the second
// (`cls.predictions.decoder.*`) is not.
//
// Initial weights are normal with standard deviation initializer_range, biases are 0, LayerNorm is
// 1 and 0, and the padding token's embedding is 0. The three classes share them: the same seed
// gives the same body.
//
// Threads: one thread at a time, as for torch::nn::Module.

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
  at::Tensor attention_mask_BT;  // 1 or true for tokens, 0 for padding; undefined: all are tokens
  at::Tensor token_types_BT;     // int64, 0 for the first and 1 for the second text; undefined: 0
};

struct BertOutput {
  at::Tensor hidden_BTE;  // [batch, time, hidden_size]
  at::Tensor pooled_BE;   // tanh of a layer on the first token; undefined without a pooler
};

// Lists the tensors for DistributedDataParallel, which looks for them in what forward() returns.
void append_tensors(const BertOutput& output, std::vector<at::Tensor>& tensors);

enum class BertPooler { FirstToken, None };

// The body of the model. The other two classes contain one.
class BertImpl : public ConfiguredModule {
 public:
  // Throws UsageError when an option is out of range.
  explicit BertImpl(BertOptions options = {}, BertPooler pooler = BertPooler::FirstToken);

  // Throws UsageError if the shapes of the input do not match each other or the options.
  BertOutput forward(const BertInput& input);

  // Returns one vector of length 1 per sequence, [batch, hidden_size]: the normalised mean of its
  // tokens' last hidden states, which all-MiniLM-L6-v2 and similar models were trained to give.
  at::Tensor embed(const BertInput& input);

  // The embedding of the words, to which the head of the masked language model is tied.
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
  // Throws UsageError when an option is out of range.
  explicit BertForMaskedLMImpl(BertOptions options = {});

  // Returns logits [batch, time, vocab_size]; masked_token_loss() is their loss.
  at::Tensor forward(const BertInput& input);

 private:
  std::shared_ptr<BertImpl> bert_;
  std::shared_ptr<models::layers::BertHead> cls_;
};
TORCH_MODULE(BertForMaskedLM);

class BertForSequenceClassificationImpl : public ConfiguredModule {
 public:
  // Throws UsageError when an option is out of range.
  explicit BertForSequenceClassificationImpl(BertOptions options = {});

  // Returns logits [batch, num_labels].
  at::Tensor forward(const BertInput& input);

 private:
  std::shared_ptr<BertImpl> bert_;
  std::shared_ptr<models::layers::LinearImpl> classifier_;
  double dropout_;
};
TORCH_MODULE(BertForSequenceClassification);

}  // namespace lockstep

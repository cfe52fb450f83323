// Shapes: B batch, T time, E hidden size, V vocabulary, L labels.
#include <ATen/ops/dropout.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/models/bert.h>

#include "device/functions/functions.h"
#include "models/bert_layers.h"
#include "models/init.h"

namespace lockstep {
namespace {

ModelConfig config_of(const char* architecture, const BertOptions& options) {
  return {.architecture = architecture, .options = options};
}

std::shared_ptr<BertImpl> body(BertOptions options, BertPooler pooler) {
  options.initialise = false;  // the whole model does it, head included
  return std::make_shared<BertImpl>(options, pooler);
}

void check_like_ids(const char* what, const at::Tensor& tensor, const at::Tensor& ids_BT) {
  if (tensor.defined() && tensor.sizes() != ids_BT.sizes()) {
    throw UsageError("BERT: the {} has shape [{}], the ids have [{}]", what,
                     fmt::join(tensor.sizes(), ", "), fmt::join(ids_BT.sizes(), ", "));
  }
}

}  // namespace

void append_tensors(const BertOutput& output, std::vector<at::Tensor>& tensors) {
  tensors.push_back(output.hidden_BTE);
  if (output.pooled_BE.defined()) {
    tensors.push_back(output.pooled_BE);
  }
}

BertImpl::BertImpl(BertOptions options, BertPooler pooler)
    : ConfiguredModule(config_of("BertModel", options)), options_(options) {
  embeddings_ =
      register_module("embeddings", std::make_shared<models::layers::BertEmbeddings>(options));
  encoder_ = register_module("encoder", std::make_shared<models::layers::BertEncoder>(options));
  if (pooler == BertPooler::FirstToken) {
    pooler_ = register_module("pooler", std::make_shared<models::layers::BertPoolerLayer>(options));
  }
  if (options.initialise) {
    models::initialise(*this, options.seed);
  }
}

BertOutput BertImpl::forward(const BertInput& input) {
  models::layers::check_ids("BERT", input.ids_BT, options_.max_positions);
  check_like_ids("attention mask", input.attention_mask_BT, input.ids_BT);
  check_like_ids("tensor of token types", input.token_types_BT, input.ids_BT);
  const at::Tensor token_types_BT =
      input.token_types_BT.defined() ? input.token_types_BT : at::zeros_like(input.ids_BT);
  at::Tensor mask_B11T;
  if (input.attention_mask_BT.defined()) {
    mask_B11T = input.attention_mask_BT.to(at::kBool).unsqueeze(1).unsqueeze(1);
  }
  const device::SharedDropout shared;
  BertOutput output;
  output.hidden_BTE =
      encoder_->forward(embeddings_->forward(input.ids_BT, token_types_BT), mask_B11T);
  if (pooler_) {
    output.pooled_BE = pooler_->forward(output.hidden_BTE);
  }
  return output;
}

at::Tensor BertImpl::embed(const BertInput& input) {
  const at::Tensor hidden_BTE = forward(input).hidden_BTE;
  const at::Tensor mask_BT =
      input.attention_mask_BT.defined() ? input.attention_mask_BT : at::ones_like(input.ids_BT);
  const at::Tensor weight_BT1 = mask_BT.unsqueeze(-1).to(hidden_BTE.scalar_type());
  // The lower limits keep a sequence without tokens from becoming NaN.
  const at::Tensor mean_BE = (hidden_BTE * weight_BT1).sum(1) / weight_BT1.sum(1).clamp_min(1e-9);
  return mean_BE / at::linalg_vector_norm(mean_BE, 2, {-1}, /*keepdim=*/true).clamp_min(1e-12);
}

const at::Tensor& BertImpl::word_embedding_VE() const {
  return embeddings_->word_embedding_VE();
}

BertForMaskedLMImpl::BertForMaskedLMImpl(BertOptions options)
    : ConfiguredModule(config_of("BertForMaskedLM", options)),
      bert_(register_module("bert", body(options, BertPooler::None))),
      cls_(register_module("cls", std::make_shared<models::layers::BertHead>(options))) {
  if (options.initialise) {
    models::initialise(*this, options.seed);
  }
}

at::Tensor BertForMaskedLMImpl::forward(const BertInput& input) {
  const at::Tensor hidden_BTE = bert_->forward(input).hidden_BTE;
  const at::Tensor logits_BTV = cls_->forward(hidden_BTE, bert_->word_embedding_VE());
  return logits_BTV;
}

BertForSequenceClassificationImpl::BertForSequenceClassificationImpl(BertOptions options)
    : ConfiguredModule(config_of("BertForSequenceClassification", options)),
      bert_(register_module("bert", body(options, BertPooler::FirstToken))),
      classifier_(register_module("classifier", std::make_shared<models::layers::LinearImpl>(
                                                    options.hidden_size, options.num_labels))),
      dropout_(options.classifier_dropout >= 0 ? options.classifier_dropout
                                               : options.hidden_dropout) {
  if (options.initialise) {
    models::initialise(*this, options.seed);
  }
}

at::Tensor BertForSequenceClassificationImpl::forward(const BertInput& input) {
  const at::Tensor pooled_BE = bert_->forward(input).pooled_BE;
  const at::Tensor logits_BL =
      classifier_->forward(at::dropout(pooled_BE, dropout_, is_training()));
  return logits_BL;
}

}  // namespace lockstep

#include "models/families.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/text/text.h"
#include "models/config_fields.h"

namespace lockstep::models {
namespace {

const std::array<ModelFamily, 4>& families() {
  static const std::array<ModelFamily, 4> all = {{
      {.kind = ModelKind::MyTransformer,
       .model_type = "mytransformer",
       .architectures = {"MyTransformer"}},
      {.kind = ModelKind::GPT2,
       .model_type = "gpt2",
       .architectures = {"GPT2LMHeadModel"},
       .names = {.prefix = "transformer.",
                 .ignored_ends = {".attn.bias", ".attn.masked_bias", ".crossattention.bias"},
                 .ties = {{"lm_head.weight", "wte.weight"}}}},
      {.kind = ModelKind::Bert,
       .model_type = "bert",
       .architectures = {"BertModel", "BertForMaskedLM", "BertForSequenceClassification"},
       .names = {.prefix = "bert.",
                 .renamed_ends = {{"LayerNorm.gamma", "LayerNorm.weight"},
                                  {"LayerNorm.beta", "LayerNorm.bias"}},
                 .ignored_ends = {"embeddings.position_ids", "embeddings.token_type_ids"},
                 .ties = {{"cls.predictions.decoder.weight", "embeddings.word_embeddings.weight"},
                          {"cls.predictions.decoder.bias", "cls.predictions.bias"}}},
       .heads = {"pooler.", "cls.", "classifier."}},
      // Not transformers' "resnet", whose parameters have other names.
      {.kind = ModelKind::ResNet,
       .model_type = "torchvision_resnet",
       .architectures = {"ResNet"},
       .heads = {"fc."}},
  }};
  return all;
}

}  // namespace

const ModelFamily& family_of(const ModelConfig& config) {
  return families().at(config.options.index());
}

const ModelFamily& family_of(const ConfigFields& fields) {
  std::string model_type;
  fields.read("model_type", model_type);
  std::vector<std::string> known;
  for (const ModelFamily& family : families()) {
    if (family.model_type == model_type) {
      return family;
    }
    known.push_back(family.model_type);
  }
  fields.refuse_word("model_type", model_type, known);
}

std::string known_architecture(const std::string& source, const ModelFamily& family,
                               const std::string& name) {
  if (name == "GPT2Model" && family.kind == ModelKind::GPT2) {
    return "GPT2LMHeadModel";
  }
  if (name == "BertForPreTraining" && family.kind == ModelKind::Bert) {
    return "BertForMaskedLM";
  }
  const auto& known = family.architectures;
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    throw UsageError("{}: the architecture is \"{}\"; lockstep has {}{}", source, name,
                     fmt::join(known, ", "), base::did_you_mean(name, known));
  }
  return name;
}

bool belongs_to_head(const ModelFamily& family, const std::string& name) {
  const std::string_view prefix = family.names.prefix;
  const std::string_view plain =
      name.starts_with(prefix) ? std::string_view(name).substr(prefix.size()) : name;
  return std::any_of(family.heads.begin(), family.heads.end(),
                     [&](const std::string& head) { return plain.starts_with(head); });
}

}  // namespace lockstep::models

#include <algorithm>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/models/model_config.h>

#include "models/config_fields.h"
#include "models/families.h"

namespace lockstep {
namespace {

constexpr size_t kMaxConfigBytes = 16'000'000;  // id2label of a large vocabulary of labels and more

const std::vector<std::pair<std::string, Activation>> kActivations = {
    {"gelu", Activation::Gelu},
    {"gelu_new", Activation::GeluTanh},
    {"gelu_pytorch_tanh", Activation::GeluTanh},
    {"relu", Activation::Relu}};

void read_activation(const models::ConfigFields& fields, const std::string& key,
                     Activation& activation) {
  std::string word;
  fields.read(key, word);
  std::vector<std::string> known;
  for (const auto& [name, value] : kActivations) {
    known.push_back(name);
    if (name == word) {
      activation = value;
    }
  }
  if (!word.empty() && std::find(known.begin(), known.end(), word) == known.end()) {
    fields.refuse_word(key, word, known);
  }
}

std::string name_of(Activation activation) {
  const auto found = std::find_if(kActivations.begin(), kActivations.end(),
                                  [&](const auto& pair) { return pair.second == activation; });
  return found->first;
}

MyTransformerOptions read_my_transformer(const models::ConfigFields& fields) {
  MyTransformerOptions options;
  options.vocab_size = fields.whole("vocab_size");
  options.hidden_size = fields.whole("hidden_size");
  options.num_layers = fields.whole("num_layers");
  options.num_heads = fields.whole("num_heads");
  options.ffn_size = fields.whole("ffn_size");
  options.max_positions = fields.whole("max_positions");
  fields.read("dropout", options.dropout);
  fields.read("layer_norm_eps", options.layer_norm_eps);
  fields.read("initializer_range", options.initializer_range);
  return options;
}

GPT2Options read_gpt2(const models::ConfigFields& fields) {
  fields.must_be("tie_word_embeddings", true);
  fields.must_be("scale_attn_weights", true);
  fields.must_be("scale_attn_by_inverse_layer_idx", false);
  fields.must_be("add_cross_attention", false);
  GPT2Options options;
  options.vocab_size = fields.whole("vocab_size");
  options.hidden_size = fields.whole("n_embd");
  options.num_layers = fields.whole("n_layer");
  options.num_heads = fields.whole("n_head");
  options.max_positions = fields.whole("n_positions");
  options.ffn_size = options.hidden_size < INT64_MAX / 4 ? 4 * options.hidden_size : 0;
  fields.read("n_inner", options.ffn_size);
  read_activation(fields, "activation_function", options.activation);
  fields.read("embd_pdrop", options.embedding_dropout);
  fields.read("attn_pdrop", options.attention_dropout);
  fields.read("resid_pdrop", options.residual_dropout);
  fields.read("layer_norm_epsilon", options.layer_norm_eps);
  fields.read("initializer_range", options.initializer_range);
  return options;
}

BertOptions read_bert(const models::ConfigFields& fields) {
  fields.must_be("tie_word_embeddings", true);
  fields.must_be("position_embedding_type", "absolute");
  fields.must_be("is_decoder", false);
  fields.must_be("add_cross_attention", false);
  BertOptions options;
  options.vocab_size = fields.whole("vocab_size");
  options.hidden_size = fields.whole("hidden_size");
  options.num_layers = fields.whole("num_hidden_layers");
  options.num_heads = fields.whole("num_attention_heads");
  options.ffn_size = fields.whole("intermediate_size");
  options.max_positions = fields.whole("max_position_embeddings");
  fields.read("type_vocab_size", options.num_token_types);
  fields.read("num_labels", options.num_labels);
  if (fields.has("id2label") && fields.json().at("id2label").is_object()) {
    options.num_labels = static_cast<int64_t>(fields.json().at("id2label").size());
  }
  const bool says_none = fields.json().contains("pad_token_id") && !fields.has("pad_token_id");
  options.pad_token = says_none ? -1 : options.pad_token;
  fields.read("pad_token_id", options.pad_token);
  read_activation(fields, "hidden_act", options.activation);
  fields.read("hidden_dropout_prob", options.hidden_dropout);
  fields.read("attention_probs_dropout_prob", options.attention_dropout);
  fields.read("classifier_dropout", options.classifier_dropout);
  fields.read("layer_norm_eps", options.layer_norm_eps);
  fields.read("initializer_range", options.initializer_range);
  return options;
}

ResNetOptions read_resnet(const models::ConfigFields& fields) {
  ResNetOptions options;
  fields.read("blocks", options.blocks);
  fields.read("bottleneck", options.bottleneck);
  fields.read("width", options.width);
  fields.read("num_classes", options.num_classes);
  return options;
}

nlohmann::ordered_json fields_of(const MyTransformerOptions& options) {
  return {{"vocab_size", options.vocab_size},
          {"hidden_size", options.hidden_size},
          {"num_layers", options.num_layers},
          {"num_heads", options.num_heads},
          {"ffn_size", options.ffn_size},
          {"max_positions", options.max_positions},
          {"dropout", options.dropout},
          {"layer_norm_eps", options.layer_norm_eps},
          {"initializer_range", options.initializer_range}};
}

nlohmann::ordered_json fields_of(const GPT2Options& options) {
  // transformers would take 50256 for both, and warn where the vocabulary has no such token.
  const bool is_original = options.vocab_size == GPT2Options{}.vocab_size;
  const auto end_of_text = is_original ? nlohmann::ordered_json(50256) : nullptr;
  return {{"vocab_size", options.vocab_size},
          {"n_embd", options.hidden_size},
          {"n_layer", options.num_layers},
          {"n_head", options.num_heads},
          {"n_inner", options.ffn_size},
          {"n_positions", options.max_positions},
          {"activation_function", name_of(options.activation)},
          {"embd_pdrop", options.embedding_dropout},
          {"attn_pdrop", options.attention_dropout},
          {"resid_pdrop", options.residual_dropout},
          {"layer_norm_epsilon", options.layer_norm_eps},
          {"initializer_range", options.initializer_range},
          {"tie_word_embeddings", true},
          {"bos_token_id", end_of_text},
          {"eos_token_id", end_of_text}};
}

nlohmann::ordered_json fields_of(const BertOptions& options) {
  nlohmann::ordered_json fields = {{"vocab_size", options.vocab_size},
                                   {"hidden_size", options.hidden_size},
                                   {"num_hidden_layers", options.num_layers},
                                   {"num_attention_heads", options.num_heads},
                                   {"intermediate_size", options.ffn_size},
                                   {"max_position_embeddings", options.max_positions},
                                   {"type_vocab_size", options.num_token_types},
                                   {"pad_token_id", nullptr},
                                   {"hidden_act", name_of(options.activation)},
                                   {"hidden_dropout_prob", options.hidden_dropout},
                                   {"attention_probs_dropout_prob", options.attention_dropout},
                                   {"classifier_dropout", nullptr},
                                   {"layer_norm_eps", options.layer_norm_eps},
                                   {"initializer_range", options.initializer_range},
                                   {"tie_word_embeddings", true}};
  if (options.pad_token >= 0) {
    fields["pad_token_id"] = options.pad_token;
  }
  if (options.classifier_dropout >= 0) {
    fields["classifier_dropout"] = options.classifier_dropout;
  }
  for (int64_t i = 0; i < options.num_labels; ++i) {
    const std::string label = fmt::format("LABEL_{}", i);
    fields["id2label"][std::to_string(i)] = label;
    fields["label2id"][label] = i;
  }
  return fields;
}

nlohmann::ordered_json fields_of(const ResNetOptions& options) {
  return {{"blocks", options.blocks},
          {"bottleneck", options.bottleneck},
          {"width", options.width},
          {"num_classes", options.num_classes}};
}

// What config.json calls the class, or what the caller wants instead.
std::string architecture_of(const models::ConfigFields& fields, const models::ModelFamily& family,
                            const std::string& wanted) {
  std::string name = wanted;
  if (name.empty() && fields.has("architectures")) {
    const nlohmann::json& list = fields.json().at("architectures");
    if (!list.is_array() || list.empty() || !list[0].is_string()) {
      throw UsageError("{}: architectures must be a list of names", fields.name());
    }
    name = list[0].get<std::string>();
  }
  return name.empty() ? family.architectures.front()
                      : models::known_architecture(fields.name(), family, name);
}

}  // namespace

ModelConfig parse_config(const ConfigText& text) {
  if (text.json.size() > kMaxConfigBytes) {
    throw FormatError("{} has {} bytes, a configuration has at most {}", text.name,
                      text.json.size(), kMaxConfigBytes);
  }
  const auto json = nlohmann::json::parse(text.json, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    throw FormatError("{} is not a JSON object: it should be a model's config.json", text.name);
  }
  const models::ConfigFields fields(json, text.name);
  const models::ModelFamily& family = models::family_of(fields);
  ModelConfig config{.architecture = architecture_of(fields, family, text.architecture)};
  switch (family.kind) {
    case models::ModelKind::MyTransformer:
      config.options = read_my_transformer(fields);
      break;
    case models::ModelKind::GPT2:
      config.options = read_gpt2(fields);
      break;
    case models::ModelKind::Bert:
      config.options = read_bert(fields);
      break;
    case models::ModelKind::ResNet:
      config.options = read_resnet(fields);
      break;
  }
  try {
    check_options(config);
  } catch (const UsageError& error) {
    throw UsageError("{}: {}", text.name, error.what());
  }
  return config;
}

std::string config_json(const ModelConfig& config) {
  nlohmann::ordered_json json = {{"architectures", {config.architecture}},
                                 {"model_type", models::family_of(config).model_type}};
  json.update(std::visit([](const auto& options) { return fields_of(options); }, config.options));
  return json.dump(2) + "\n";
}

}  // namespace lockstep

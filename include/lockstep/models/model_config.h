#pragma once

// What a model is made of: its options, which are those of config.json, and the configurations that
// are built in.
//
// Example:
//   auto config = lockstep::builtin_config("gpt2-medium");
//   lockstep::GPT2 gpt(std::get<lockstep::GPT2Options>(config.options));
//
// Sizes and probabilities have our names; docs/concepts/models.md sets config.json's names beside
// them. Every option is checked where a model is made: a UsageError names the option, its value and
// the limit.
//
// Two options are in all of the structs and in no file:
//
//   seed        initial weights are a function of it, of the parameter's name and of its shape, and
//               of nothing else; libtorch's global generator plays no part
//   initialise  false leaves parameters uninitialised, for weights that are loaded next
//
// Threads: these are values and pure functions.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace lockstep {

enum class Activation {
  Gelu,      // uses the error function
  GeluTanh,  // is its approximation by tanh, "gelu_new"
  Relu
};

// The options of MyTransformer: a causal transformer with pre-norm and learned positions.
struct MyTransformerOptions {
  int64_t vocab_size = 30000;
  int64_t hidden_size = 512;  // a multiple of num_heads
  int64_t num_layers = 12;
  int64_t num_heads = 8;
  int64_t ffn_size = 2048;
  int64_t max_positions = 512;  // 0: no positions at all, sequences of any length
  double dropout = 0.1;
  double layer_norm_eps = 1e-5;
  double initializer_range = 0.02;  // the standard deviation of the initial weights
  uint64_t seed = 42;
  bool initialise = true;
};

struct GPT2Options {
  int64_t vocab_size = 50257;
  int64_t hidden_size = 768;  // a multiple of num_heads
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  int64_t ffn_size = 3072;
  int64_t max_positions = 1024;
  Activation activation = Activation::GeluTanh;
  double embedding_dropout = 0.1;
  double attention_dropout = 0.1;
  double residual_dropout = 0.1;
  double layer_norm_eps = 1e-5;
  double initializer_range = 0.02;
  uint64_t seed = 42;
  bool initialise = true;
};

struct BertOptions {
  int64_t vocab_size = 30522;
  int64_t hidden_size = 768;  // a multiple of num_heads
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  int64_t ffn_size = 3072;
  int64_t max_positions = 512;
  int64_t num_token_types = 2;
  int64_t pad_token = 0;   // its embedding starts at 0 and gets no gradient as an input; -1: none
  int64_t num_labels = 2;  // the classes of the classification head
  Activation activation = Activation::Gelu;
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;
  double classifier_dropout = -1;  // -1 means hidden_dropout
  double layer_norm_eps = 1e-12;
  double initializer_range = 0.02;
  uint64_t seed = 42;
  bool initialise = true;
};

struct ResNetOptions {
  std::vector<int64_t> blocks = {3, 4, 6, 3};  // how many the four stages have
  bool bottleneck = true;                      // blocks have three convolutions, not two
  int64_t width = 64;                          // the channels of the first stage
  int64_t num_classes = 1000;
  uint64_t seed = 42;
  bool initialise = true;
};

struct ModelConfig {
  // The class: "MyTransformer", "GPT2LMHeadModel", "BertModel", "BertForMaskedLM",
  // "BertForSequenceClassification" or "ResNet".
  std::string architecture;
  std::variant<MyTransformerOptions, GPT2Options, BertOptions, ResNetOptions> options;
};

// The names that builtin_config() knows: "bert-base-uncased", "gpt2-large", "resnet50", ...
std::vector<std::string> builtin_config_names();

// Returns a built-in configuration. Throws UsageError for an unknown name, with the most similar
// one that exists.
ModelConfig builtin_config(const std::string& name);

struct ConfigText {
  std::string json;
  std::string name = "config.json";  // where it came from, for messages
  std::string architecture;          // if not empty, it replaces what the file says
};

// Reads a config.json of Hugging Face's transformers (model_type "gpt2" or "bert") or of
// save_pretrained(). Fields without a meaning here are ignored, and fields that would change what
// is computed in a way that lockstep does not support are refused. Throws FormatError if the text
// is not a JSON object, and UsageError for an unknown model_type, architecture or activation and
// for a field that is missing, of another type or out of range.
ModelConfig parse_config(const ConfigText& text);

// Returns a text that parse_config() reads, and for GPT-2 and BERT transformers too.
std::string config_json(const ModelConfig& config);

// Throws UsageError unless all options are in range. The constructors of the models call it.
void check_options(const ModelConfig& config);

}  // namespace lockstep

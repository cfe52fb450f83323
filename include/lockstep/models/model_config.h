#pragma once

// What a model is made of: its options, the same as config.json, and the configurations that are
// built in.
//
//   auto config = lockstep::builtin_config("gpt2-medium");
//   lockstep::GPT2 model(std::get<lockstep::GPT2Options>(config.options));
//
// Sizes and probabilities are named in our words; docs/concepts/models.md sets config.json's names
// beside them. Every option is checked where a model is made: a UsageError names the option, its
// value and the limit.
//
// `seed` and `initialise` are in all of them and in no file:
//   seed        first weights are a function of it, of the parameter's name and of its shape, and
//   of
//               nothing else; libtorch's global generator has no say
//   initialise  false leaves parameters as memory came, for weights that are loaded next
//
// Threads: these are values and pure functions.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace lockstep {

enum class Activation {
  Gelu,      // with the error function
  GeluTanh,  // its approximation, "gelu_new"
  Relu
};

// The transformer of one's own: causal, pre-norm, learned positions.
struct MyTransformerOptions {
  int64_t vocab_size = 30000;
  int64_t hidden_size = 512;  // a multiple of num_heads
  int64_t num_layers = 12;
  int64_t num_heads = 8;
  int64_t ffn_size = 2048;
  int64_t max_positions = 512;  // 0: no positions at all, sequences of any length
  double dropout = 0.1;
  double layer_norm_eps = 1e-5;
  double initializer_range = 0.02;  // standard deviation of the first weights
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
  int64_t num_labels = 2;  // of the classification head
  Activation activation = Activation::Gelu;
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;
  double classifier_dropout = -1;  // -1: hidden_dropout
  double layer_norm_eps = 1e-12;
  double initializer_range = 0.02;
  uint64_t seed = 42;
  bool initialise = true;
};

struct ResNetOptions {
  std::vector<int64_t> blocks = {3, 4, 6, 3};  // of the four stages
  bool bottleneck = true;                      // blocks of three convolutions, not two
  int64_t width = 64;                          // channels of the first stage
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

// "bert-base-uncased", "gpt2-large", "resnet50", ...
std::vector<std::string> builtin_config_names();

// Throws UsageError for an unknown name, with the nearest that exists.
ModelConfig builtin_config(const std::string& name);

struct ConfigText {
  std::string json;
  std::string name = "config.json";  // for messages: where it came from
  std::string architecture;          // not empty: instead of what the file says
};

// config.json of Hugging Face's transformers (model_type "gpt2" or "bert"), or of save_pretrained.
// Fields without a meaning here are ignored; those that would change what is computed in a way that
// lockstep lacks are refused. Throws FormatError for what is no JSON object, UsageError for the
// rest: an unknown model_type, architecture or activation, a field that is missing, of another type
// or out of range.
ModelConfig parse_config(const ConfigText& text);

// What parse_config reads and, for GPT-2 and BERT, transformers too.
std::string config_json(const ModelConfig& config);

// Throws UsageError unless all options are in range. The models call it.
void check_options(const ModelConfig& config);

}  // namespace lockstep

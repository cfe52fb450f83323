#include <lockstep/base/error.h>
#include <lockstep/models/model_config.h>

namespace lockstep {
namespace {

constexpr int64_t kMaxSize = 1 << 24;  // of one dimension
constexpr int64_t kMaxLayers = 1024;
// A file that names sizes each in range could still ask for more memory than any machine has.
constexpr double kMaxParameters = 1e11;

void check_whole(const char* name, int64_t value, int64_t min, int64_t max) {
  if (value < min || value > max) {
    throw UsageError("the model's {} is {}, it must be in [{}, {}]", name, value, min, max);
  }
}

void check_probability(const char* name, double value) {
  if (!(value >= 0 && value < 1)) {
    throw UsageError("the model's {} is {}, it must be in [0, 1)", name, value);
  }
}

void check_positive(const char* name, double value) {
  if (!(value > 0 && value < 1)) {
    throw UsageError("the model's {} is {}, it must be in (0, 1)", name, value);
  }
}

void check_count(double num_parameters) {
  if (num_parameters > kMaxParameters) {
    throw UsageError("the model would have {:.3g} parameters, the limit is {:.0g}", num_parameters,
                     kMaxParameters);
  }
}

template <typename Options>
void check_transformer(const Options& options) {
  check_whole("vocab_size", options.vocab_size, 1, kMaxSize);
  check_whole("hidden_size", options.hidden_size, 1, kMaxSize);
  check_whole("num_layers", options.num_layers, 0, kMaxLayers);
  check_whole("num_heads", options.num_heads, 1, kMaxSize);
  check_whole("ffn_size", options.ffn_size, 1, kMaxSize);
  if (options.hidden_size % options.num_heads != 0) {
    throw UsageError("the model's hidden_size {} is not a multiple of its {} heads",
                     options.hidden_size, options.num_heads);
  }
  check_positive("layer_norm_eps", options.layer_norm_eps);
  check_positive("initializer_range", options.initializer_range);
  const auto hidden = static_cast<double>(options.hidden_size);
  const double layer = hidden * (4 * hidden + 2 * static_cast<double>(options.ffn_size));
  const auto rows = static_cast<double>(options.vocab_size + options.max_positions);
  check_count(static_cast<double>(options.num_layers) * layer + 2 * hidden * rows);
}

void check(const MyTransformerOptions& options) {
  check_whole("max_positions", options.max_positions, 0, kMaxSize);
  check_transformer(options);
  check_probability("dropout", options.dropout);
}

void check(const GPT2Options& options) {
  check_whole("max_positions", options.max_positions, 1, kMaxSize);
  check_transformer(options);
  check_probability("embedding_dropout", options.embedding_dropout);
  check_probability("attention_dropout", options.attention_dropout);
  check_probability("residual_dropout", options.residual_dropout);
}

void check(const BertOptions& options) {
  check_whole("max_positions", options.max_positions, 1, kMaxSize);
  check_transformer(options);
  check_whole("num_token_types", options.num_token_types, 1, kMaxSize);
  check_whole("pad_token", options.pad_token, -1, options.vocab_size - 1);
  check_whole("num_labels", options.num_labels, 1, kMaxSize);
  check_probability("hidden_dropout", options.hidden_dropout);
  check_probability("attention_dropout", options.attention_dropout);
  if (options.classifier_dropout != -1) {
    check_probability("classifier_dropout", options.classifier_dropout);
  }
}

void check(const ResNetOptions& options) {
  if (options.blocks.size() != 4) {
    throw UsageError("a ResNet has 4 stages, and blocks names {}", options.blocks.size());
  }
  check_whole("width", options.width, 1, 4096);
  check_whole("num_classes", options.num_classes, 1, kMaxSize);
  double num_parameters = 0;
  double channels = static_cast<double>(options.width);
  for (const int64_t blocks : options.blocks) {
    check_whole("number of blocks in a stage", blocks, 1, kMaxLayers);
    num_parameters += static_cast<double>(blocks) * 18 * channels * channels;
    channels *= 2;
  }
  check_count(num_parameters + 2 * channels * static_cast<double>(options.num_classes));
}

}  // namespace

void check_options(const ModelConfig& config) {
  std::visit([](const auto& options) { check(options); }, config.options);
}

}  // namespace lockstep

// The recipes "mytransformer" and "gpt2": language models on text. Shapes: B batch, T time, V
// vocabulary.
#include <filesystem>

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/data/token_data.h>
#include <lockstep/models/auto_model.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/my_transformer.h>
#include <lockstep/tokenizers/tokenizer.h>

#include "base/text/text.h"
#include "comm/agree.h"
#include "models/shifted_labels.h"
#include "storage/storage.h"
#include "train/option_ranges.h"
#include "train/recipes/byte_text.h"
#include "train/recipes/recipe.h"

namespace lockstep::train {
namespace {

using Forward = std::function<at::Tensor(const at::Tensor& ids_BT)>;

class LanguageTask : public TrainingTask {
 public:
  LanguageTask(std::shared_ptr<torch::nn::Module> module, Forward forward, double label_smoothing)
      : module_(std::move(module)),
        forward_(std::move(forward)),
        label_smoothing_(label_smoothing) {}

  std::shared_ptr<torch::nn::Module> module() const override { return module_; }

  TaskOutput forward(const Batch& batch) override {
    at::Tensor logits_BTV = forward_(batch.input);
    const int64_t num_predicted = batch.target.size(0) * (batch.target.size(1) - 1);
    if (!module_->is_training() || label_smoothing_ == 0) {
      return {.loss = next_token_loss(std::move(logits_BTV), batch.target),
              .num_counted = num_predicted};
    }
    const models::NextTokens next = models::next_tokens(logits_BTV, batch.target);
    return {
        .loss = at::cross_entropy_loss(next.logits_BTV.flatten(0, 1), next.labels_BT.flatten(), {},
                                       at::Reduction::Mean, kIgnoredLabel, label_smoothing_),
        .num_counted = num_predicted};
  }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  Forward forward_;
  double label_smoothing_;
};

// [data] of both recipes.
struct TextSettings {
  std::string text = "recipes/data/handbook.txt";
  std::string tokens;
  std::string tokenizer = "bytes";
  std::string token_file;
  std::string held_out;
  int64_t sequence_length = 128;
  HeldOutShare held_out_share{.share = 0.1};

  void read(base::Config& config) {
    config.read_path("data.text", text, {.is_list = true});
    config.read_path("data.tokens", tokens, {.is_list = true});
    config.read_path("data.tokenizer", tokenizer, {.word = "bytes"});
    config.read_path("data.token_file", token_file);
    config.read("data.sequence_length", sequence_length, {.min = 2, .max = 1 << 20});
    config.read_path("data.held_out", held_out, {.is_list = true});
    held_out_share.read(config);
    if (text.empty() && tokens.empty()) {
      throw UsageError(
          "there is nothing to read: set data.text to texts or JSONL files, or data.tokens to "
          "token "
          "files (several: with commas)");
    }
  }

  bool has_bytes() const { return tokens.empty() && tokenizer == "bytes"; }

  std::vector<DataSource> sources() const;
  TextSettings with_tokenizer_of(const TokenizerFolder& kept) const;

  struct OpenOptions {
    int64_t vocab_size = 0;    // of the model
    bool judges_only = false;  // as in MakeOptions
  };

  // Samples to train on and to judge by.
  void open(Ingredients& made, const OpenOptions& options, Group& group) const;

 private:
  std::shared_ptr<const Dataset> open_text(const std::string& files, const std::string& to,
                                           int64_t vocab_size, Group& group) const;
};

std::vector<DataSource> TextSettings::sources() const {
  DataSource words{.key = "data.tokenizer", .counts = is_tokenizer_file};
  if (tokenizer == "bytes") {
    words.word = "bytes";
  } else {
    words.locations = {tokenizer};
  }
  const DataSource train =
      tokens.empty() ? DataSource{.key = "data.text", .locations = base::split_setting(text)}
                     : DataSource{.key = "data.tokens", .locations = base::split_setting(tokens)};
  return {train, {.key = "data.held_out", .locations = base::split_setting(held_out)}, words};
}

TextSettings TextSettings::with_tokenizer_of(const TokenizerFolder& kept) const {
  TextSettings settings = *this;
  if (tokenizer != "bytes" && !kept.path().empty()) {
    settings.tokenizer = kept.path();
  }
  return settings;
}

std::shared_ptr<const Dataset> TextSettings::open_text(const std::string& files,
                                                       const std::string& to, int64_t vocab_size,
                                                       Group& group) const {
  const TokenDataOptions options{.sequence_length = sequence_length, .vocab_size = vocab_size};
  auto inputs = base::split_setting(files);
  if (!tokens.empty()) {
    return open_tokens(inputs, options);
  }
  if (has_bytes()) {
    return open_byte_text(inputs, sequence_length);
  }
  for (std::string& input : inputs) {
    // The token file remembers what it was made from, and is used from every working folder.
    input = storage::is_remote(input)
                ? input
                : std::filesystem::absolute(input).lexically_normal().string();
  }
  const TokenizeOptions work{.inputs = inputs,
                             .tokenizer = tokenizer,
                             .output = to.empty() ? inputs.front() + ".tokens" : to,
                             .rank = group.rank(),
                             .num_ranks = group.size()};
  comm::throw_together(group, comm::caught([&] { tokenize_share(work); }));
  comm::throw_together(group, comm::caught([&] {
                         if (group.rank() == 0) {
                           join_token_shares(work);
                         }
                       }));
  return open_tokens({work.output}, options);
}

void TextSettings::open(Ingredients& made, const OpenOptions& options, Group& group) const {
  const int64_t vocab_size = options.vocab_size;
  if (has_bytes() && vocab_size < kByteVocabulary) {
    throw UsageError(
        "model.vocab_size = {} has no place for the {} bytes of data.tokenizer = \"bytes\"",
        vocab_size, kByteVocabulary);
  }
  std::shared_ptr<const Dataset> data;
  if (held_out.empty() || !options.judges_only) {
    data = open_text(tokens.empty() ? text : tokens, token_file, vocab_size, group);
  }
  if (held_out.empty()) {
    hold_out(made, data, held_out_share);
    return;
  }
  const std::string to = token_file.empty() ? "" : token_file + ".held_out";
  hold_out(made, data, open_text(held_out, to, vocab_size, group), held_out);
}

// Adds what turns text into ids and back, and its files. Returns the tokenizer's special ids.
std::optional<SpecialIds> add_text(Ingredients& made, const TextSettings& text,
                                   int64_t vocab_size) {
  if (text.has_bytes()) {
    made.encode = encode_bytes;
    made.decode = decode_bytes;
    made.files = byte_tokenizer_files();
    return SpecialIds();
  }
  if (text.tokenizer != "bytes") {
    const Tokenizer tokenizer = load_tokenizer(text.tokenizer);
    check_vocabulary(tokenizer, vocab_size, text.tokenizer);
    made.encode = [tokenizer](const std::string& words) {
      // As tokenize_share() does: the model has never seen a special token before a text.
      const auto ids = tokenizer.encode(words, {.add_special_tokens = false});
      return std::vector<int64_t>(ids.begin(), ids.end());
    };
    made.decode = [tokenizer](const std::vector<int64_t>& ids) {
      return tokenizer.decode(std::vector<int32_t>(ids.begin(), ids.end()));
    };
    made.files = tokenizer_files(text.tokenizer);
    return tokenizer.special_ids();
  }
  return std::nullopt;
}

struct LanguageParts {
  int64_t max_positions = 0;
  int64_t vocab_size = 0;
  const TextSettings& text;
  double label_smoothing = 0;
  std::string original_config = {};  // of the weights that training began with
  const ModelFiles* kept = nullptr;  // as in MakeOptions
};

template <typename Holder>
Ingredients language_ingredients(Holder model, const LanguageParts& parts) {
  Ingredients made;
  made.task = std::make_unique<LanguageTask>(
      model.ptr(), [model](const at::Tensor& ids_BT) mutable { return model(ids_BT); },
      parts.label_smoothing);
  made.next_token_logits = [model](const at::Tensor& ids_BT) mutable { return model(ids_BT); };
  made.max_positions = parts.max_positions;
  made.exports = model.ptr();
  made.samples = "sequences";
  const auto specials = add_text(made, parts.text, parts.vocab_size);
  made.files[kModelConfigFile] =
      parts.kept != nullptr && parts.kept->contains(kModelConfigFile)
          ? parts.kept->at(kModelConfigFile)
          : model_config_text(
                model->config(),
                {.original = parts.original_config, .labels = {}, .specials = specials});
  return made;
}

void check_length(int64_t sequence_length, int64_t max_positions) {
  if (max_positions > 0 && sequence_length > max_positions) {
    throw UsageError(
        "data.sequence_length = {} is more than the model's {} positions; lower it or raise "
        "model.max_positions",
        sequence_length, max_positions);
  }
}

constexpr const char* kSizes[] = {"model.vocab_size", "model.hidden_size", "model.num_layers",
                                  "model.num_heads",  "model.ffn_size",    "model.max_positions"};

// What the options of both models have in common.
template <typename Options>
void read_sizes(base::Config& config, Options& model) {
  config.read("model.vocab_size", model.vocab_size, {.min = 1, .max = 1 << 24});
  config.read("model.hidden_size", model.hidden_size, {.min = 1, .max = 1 << 20});
  config.read("model.num_layers", model.num_layers, {.min = 1, .max = 1000});
  config.read("model.num_heads", model.num_heads, {.min = 1, .max = 1000});
  config.read("model.ffn_size", model.ffn_size, {.min = 1, .max = 1 << 20});
  auto seed = static_cast<int64_t>(model.seed);
  config.read("model.seed", seed, {.min = 0});
  model.seed = static_cast<uint64_t>(seed);
}

class MyTransformerRecipe : public Recipe {
 public:
  explicit MyTransformerRecipe(base::Config& config) {
    options_.epochs = 4;
    options_.batch_size = 16;
    options_.lr = 2e-3;
    options_.warmup_steps = 20;
    model_ = {.vocab_size = kByteVocabulary,
              .hidden_size = 128,
              .num_layers = 2,
              .num_heads = 4,
              .ffn_size = 512,
              .max_positions = 128,
              .dropout = 0.1};
    read_sizes(config, model_);
    config.read("model.max_positions", model_.max_positions, {.min = 0, .max = 1 << 20});
    config.read("model.dropout", model_.dropout, {.min = 0, .max = 0.99});
    config.read("train.label_smoothing", label_smoothing_, ranges::kLabelSmoothing);
    text_.read(config);
    check_length(text_.sequence_length, model_.max_positions);
    check_options({.architecture = "MyTransformer", .options = model_});
    sources_ = text_.sources();
  }

  Ingredients make(Group& group, const MakeOptions& options) const override {
    const TokenizerFolder folder(options.kept != nullptr ? *options.kept : ModelFiles());
    const TextSettings text = text_.with_tokenizer_of(folder);
    const auto kept = kept_model(options);
    const MyTransformer model = kept ? kept->as<MyTransformer>() : MyTransformer(model_);
    const auto& sizes = std::get<MyTransformerOptions>(model->config().options);
    Ingredients made = language_ingredients(model, {.max_positions = sizes.max_positions,
                                                    .vocab_size = sizes.vocab_size,
                                                    .text = text,
                                                    .label_smoothing = label_smoothing_,
                                                    .kept = options.kept});
    if (options.with_data) {
      text.open(made, {.vocab_size = sizes.vocab_size, .judges_only = options.judges_only}, group);
    }
    return made;
  }

 private:
  MyTransformerOptions model_;
  TextSettings text_;
  double label_smoothing_ = 0;
};

class Gpt2Recipe : public Recipe {
 public:
  explicit Gpt2Recipe(base::Config& config) {
    options_.epochs = 2;
    options_.batch_size = 16;
    options_.lr = 1e-3;
    options_.warmup_steps = 20;
    config.read_path("model.pretrained", pretrained_);
    config.read("model.config", config_);
    if (!config_.empty() && config.is_set_here("model.config")) {
      for (const char* key : kSizes) {
        config.forget_in_file(key);  // it stands for all sizes: the file's are not meant
      }
    }
    model_ = {.vocab_size = kByteVocabulary,
              .hidden_size = 128,
              .num_layers = 2,
              .num_heads = 4,
              .ffn_size = 512,
              .max_positions = 128};
    if (!config_.empty()) {
      const ModelConfig builtin = builtin_config(config_);
      const auto* options = std::get_if<GPT2Options>(&builtin.options);
      if (options == nullptr) {
        throw UsageError("model.config = \"{}\" is not a GPT-2 but a {}", config_,
                         builtin.architecture);
      }
      model_ = *options;
    }
    read_sizes(config, model_);
    config.read("model.max_positions", model_.max_positions, {.min = 1, .max = 1 << 20});
    double dropout = model_.residual_dropout;
    config.read("model.dropout", dropout, {.min = 0, .max = 0.99});
    model_.residual_dropout = model_.embedding_dropout = model_.attention_dropout = dropout;
    if (config.is_set("model.dropout")) {
      pretrained_dropout_ = dropout;
    }
    for (const char* key : kSizes) {
      if (config.is_set_here(key)) {
        asked_sizes_.emplace_back(key);
      }
    }
    config.read("train.label_smoothing", label_smoothing_, ranges::kLabelSmoothing);
    text_.read(config);
    if (pretrained_.empty()) {
      check_length(text_.sequence_length, model_.max_positions);
      check_options({.architecture = "GPT2LMHeadModel", .options = model_});
    }
    sources_ = text_.sources();
    sources_.push_back(
        {.key = "model.pretrained", .locations = if_given(pretrained_), .counts = is_model_file});
  }

  Ingredients make(Group& group, const MakeOptions& options) const override {
    const TokenizerFolder folder(options.kept != nullptr ? *options.kept : ModelFiles());
    const TextSettings text = text_.with_tokenizer_of(folder);
    const auto kept = kept_model(options);
    const GPT2 model = kept ? kept->as<GPT2>() : make_model(group);
    const auto& sizes = std::get<GPT2Options>(model->config().options);
    Ingredients made = language_ingredients(
        model, {.max_positions = sizes.max_positions,
                .vocab_size = sizes.vocab_size,
                .text = text,
                .label_smoothing = label_smoothing_,
                .original_config = kept ? "" : original_config(pretrained_, group),
                .kept = options.kept});
    if (options.with_data) {
      check_length(text.sequence_length, sizes.max_positions);
      text.open(made, {.vocab_size = sizes.vocab_size, .judges_only = options.judges_only}, group);
    }
    add_settings(made, sizes);
    return made;
  }

 private:
  static std::map<std::string, int64_t> sizes_of(const GPT2Options& options) {
    return {
        {"model.vocab_size", options.vocab_size}, {"model.hidden_size", options.hidden_size},
        {"model.num_layers", options.num_layers}, {"model.num_heads", options.num_heads},
        {"model.ffn_size", options.ffn_size},     {"model.max_positions", options.max_positions}};
  }

  GPT2 make_model(Group& group) const {
    if (pretrained_.empty()) {
      return GPT2(model_);
    }
    GPT2 model = AutoModel::from_pretrained(pretrained_, group,
                                            {.architecture = "GPT2LMHeadModel",
                                             .seed = model_.seed,
                                             .dropout = pretrained_dropout_})
                     .as<GPT2>();
    const auto sizes = sizes_of(std::get<GPT2Options>(model->config().options));
    for (const std::string& key : asked_sizes_) {
      const int64_t asked = sizes_of(model_).at(key), found = sizes.at(key);
      if (asked != found) {
        throw UsageError(
            "--set {} = {}, but the model in {} has {}: a pretrained model comes with its sizes; "
            "leave {} out",
            key, asked, pretrained_, found, key);
      }
    }
    return model;
  }

  void add_settings(Ingredients& made, const GPT2Options& options) const {
    for (const auto& [key, value] : sizes_of(options)) {
      made.model_settings[key.substr(key.find('.') + 1)] = fmt::format("{}", value);
    }
    if (!pretrained_.empty()) {
      const std::string dropout = fmt::format("{}", options.residual_dropout);
      made.model_settings["dropout"] = dropout == "0" ? "0.0" : dropout;  // a real
    }
  }

  std::string pretrained_;
  std::optional<double> pretrained_dropout_;  // none: as published
  std::vector<std::string> asked_sizes_;      // keys that were given with --set
  std::string config_;
  GPT2Options model_;
  TextSettings text_;
  double label_smoothing_ = 0;
};

}  // namespace

std::unique_ptr<Recipe> read_mytransformer(base::Config& config) {
  return std::make_unique<MyTransformerRecipe>(config);
}

std::unique_ptr<Recipe> read_gpt2(base::Config& config) {
  return std::make_unique<Gpt2Recipe>(config);
}

}  // namespace lockstep::train

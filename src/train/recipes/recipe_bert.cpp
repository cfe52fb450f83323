// The recipe "bert-classify": a published BERT learns to label texts. Shapes: B batch, T time.
#include <ATen/core/grad_mode.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/data/text_data.h>
#include <lockstep/models/auto_model.h>
#include <lockstep/models/bert.h>
#include <lockstep/tokenizers/tokenizer.h>

#include "data/only_label.h"
#include "train/option_ranges.h"
#include "train/recipes/classifier_task.h"
#include "train/recipes/recipe.h"

namespace lockstep::train {
namespace {

void check_text_length(int64_t max_length, int64_t max_positions) {
  if (max_length > max_positions) {
    throw UsageError(
        "data.max_length = {} is more than the model's {} positions, so that a text of that length "
        "could not be read; lower it to {}",
        max_length, max_positions, max_positions);
  }
}

// The classifier's body by itself, with the weights that it has now.
at::Tensor embed(const BertForSequenceClassification& model, const at::Tensor& ids_BT) {
  const at::NoGradGuard no_grad;
  Bert body(std::get<BertOptions>(model->config().options));
  body->to(ids_BT.device());
  const auto weights = model->named_parameters();
  for (auto& item : body->named_parameters()) {
    item.value().copy_(weights["bert." + item.key()]);
  }
  body->eval();
  return body->embed({.ids_BT = ids_BT, .attention_mask_BT = {}, .token_types_BT = {}});
}

class BertClassify : public Recipe {
 public:
  explicit BertClassify(base::Config& config) {
    options_.epochs = 3;
    options_.batch_size = 16;
    options_.lr = 5e-5;
    options_.schedule = Schedule::Linear;
    options_.min_lr_share = 0;
    options_.warmup_steps = 10;
    config.read_path("model.pretrained", pretrained_);
    config.read("model.num_labels", num_labels_, {.min = 2, .max = 1e6});
    config.read("model.seed", seed_, {.min = 0});
    config.read_path("model.cache_dir", cache_dir_);
    config.read_path("data.train", train_);
    config.read_path("data.held_out", held_out_);
    held_out_share_.read(config);
    config.read_path("data.tokenizer", text_.tokenizer);
    config.read("data.max_length", text_.max_length, {.min = 3, .max = 1 << 16});
    config.read("data.text_field", text_.text_field);
    config.read("data.label_field", text_.label_field);
    std::string on_corrupt = "fatal";
    config.read("data.on_corrupt", on_corrupt, {"fatal", "skip"});
    text_.on_corrupt = on_corrupt == "skip" ? CorruptSample::Skip : CorruptSample::Fatal;
    config.read("train.label_smoothing", label_smoothing_, ranges::kLabelSmoothing);
    if (pretrained_.empty() || train_.empty()) {
      throw UsageError(
          "{} is empty: give {}", pretrained_.empty() ? "model.pretrained" : "data.train",
          pretrained_.empty() ? "the folder of a BERT" : "a JSONL file of texts and labels");
    }
    sources_ = {{.key = "data.train", .locations = {train_}},
                {.key = "data.held_out", .locations = if_given(held_out_)},
                {.key = "data.tokenizer",
                 .locations = {text_.tokenizer.empty() ? pretrained_ : text_.tokenizer},
                 .counts = is_tokenizer_file},
                {.key = "model.pretrained", .locations = {pretrained_}, .counts = is_model_file}};
  }

  Ingredients make(Group& group, const MakeOptions& options) const override {
    const TokenizerFolder kept(options.kept != nullptr ? *options.kept : ModelFiles());
    LabelledTextOptions text = text_;
    if (!kept.path().empty()) {
      text.tokenizer = kept.path();
    } else if (text.tokenizer.empty()) {
      text.tokenizer = pretrained_;
    }
    text.num_labels = num_labels_;
    const Tokenizer tokenizer = load_tokenizer(text.tokenizer);
    Ingredients made;
    made.samples = "texts";
    if (options.with_data) {
      open(made, text, options, group);
    }
    made.files = tokenizer_files(text.tokenizer);
    const BertForSequenceClassification model = make_model(group, options, made.files);
    const auto& sizes = std::get<BertOptions>(model->config().options);
    check_text_length(text.max_length, sizes.max_positions);
    check_vocabulary(tokenizer, sizes.vocab_size, text.tokenizer);
    made.task = std::make_unique<ClassifierTask>(
        model.ptr(),
        [net = model.ptr()](const Batch& batch) {
          return net->forward({.ids_BT = batch.input,
                               .attention_mask_BT = batch["attention_mask"],
                               .token_types_BT = {}});
        },
        label_smoothing_);
    made.exports = model.ptr();
    made.max_positions = text.max_length;
    made.embed = [model](const at::Tensor& ids_BT) { return embed(model, ids_BT); };
    made.encode = [tokenizer, text](const std::string& words) {
      const auto ids = tokenizer.encode(words, {.max_length = text.max_length});
      return std::vector<int64_t>(ids.begin(), ids.end());
    };
    return made;
  }

 private:
  void open(Ingredients& made, const LabelledTextOptions& text, const MakeOptions& options,
            const Group& group) const {
    std::shared_ptr<const Dataset> train;
    if (!options.judges_only || held_out_.empty()) {
      train = open_labelled_text(train_, text);
    }
    if (!options.judges_only && group.rank() == 0) {
      warn_of_one_label(*train);
    }
    if (held_out_.empty()) {
      hold_out(made, train, held_out_share_);
    } else {
      hold_out(made, train, open_labelled_text(held_out_, text), held_out_);
    }
  }

  void warn_of_one_label(const Dataset& train) const {
    if (const auto label = data::only_label(train)) {
      log::warn("train",
                "all labels of {} are {}, so a model only learns to answer {}; give texts of every "
                "class, or look whether data.label_field = \"{}\" is the field that was meant",
                train_, *label, *label, text_.label_field);
    }
  }

  // Adds the model's config.json to `files`.
  BertForSequenceClassification make_model(Group& group, const MakeOptions& options,
                                           ModelFiles& files) const {
    constexpr const char* kArchitecture = "BertForSequenceClassification";
    if (const auto kept = kept_model(options, kArchitecture)) {
      files[kModelConfigFile] = options.kept->at(kModelConfigFile);
      return kept->as<BertForSequenceClassification>();
    }
    const auto model = AutoModel::from_pretrained(pretrained_, group,
                                                  {.architecture = kArchitecture,
                                                   .num_labels = num_labels_,
                                                   .seed = static_cast<uint64_t>(seed_),
                                                   .cache_dir = cache_dir_})
                           .as<BertForSequenceClassification>();
    files[kModelConfigFile] = model_config_text(
        model->config(),
        {.original = original_config(pretrained_, group), .labels = {}, .specials = {}});
    return model;
  }

  std::string pretrained_ = ".deps/minilm-0.1.0";
  std::string train_ = "recipes/data/reviews.jsonl";
  std::string held_out_;
  std::string cache_dir_;
  HeldOutShare held_out_share_{.share = 0.2};
  int64_t num_labels_ = 2;
  int64_t seed_ = 42;
  double label_smoothing_ = 0;
  LabelledTextOptions text_;
};

}  // namespace

std::unique_ptr<Recipe> read_bert_classify(base::Config& config) {
  return std::make_unique<BertClassify>(config);
}

}  // namespace lockstep::train

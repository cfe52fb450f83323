#include "train/recipes/recipe.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/data/distributed_sampler.h>
#include <lockstep/models/auto_model.h>
#include <lockstep/tokenizers/tokenizer.h>

#include "base/text/text.h"
#include "storage/storage.h"
#include "train/trainer_config.h"
#include "weights/small_file.h"

namespace lockstep::train {
namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Recipe> (*read)(base::Config&);
};
constexpr Entry kRecipes[] = {{"cats", read_cats},
                              {"mytransformer", read_mytransformer},
                              {"gpt2", read_gpt2},
                              {"bert-classify", read_bert_classify},
                              {"resnet50", read_resnet50}};

// The samples of a dataset that were drawn, or those that were not.
class PartOf : public Dataset {
 public:
  using Indices = std::shared_ptr<const std::vector<int64_t>>;

  PartOf(std::shared_ptr<const Dataset> data, Indices drawn, bool has_drawn)
      : data_(std::move(data)), drawn_(std::move(drawn)), has_drawn_(has_drawn) {}

  int64_t size() const override {
    return has_drawn_ ? std::ssize(*drawn_) : data_->size() - std::ssize(*drawn_);
  }

  Batch batch(std::span<const SampleKey> samples) const override {
    std::vector<SampleKey> moved(samples.begin(), samples.end());
    for (SampleKey& sample : moved) {
      if (sample.index < 0 || sample.index >= size()) {
        throw UsageError("dataset: index {} is not in [0, {}), its size", sample.index, size());
      }
      sample.index = has_drawn_ ? (*drawn_)[static_cast<size_t>(sample.index)] : rest(sample.index);
    }
    return data_->batch(moved);
  }

  std::vector<std::string> classes() const override { return data_->classes(); }
  int64_t num_corrupt() const override { return data_->num_corrupt(); }

 private:
  // The index-th sample that was not drawn: (*drawn_)[i] has i drawn ones before it, and so
  // (*drawn_)[i] - i that were not.
  int64_t rest(int64_t index) const {
    int64_t low = 0;
    int64_t high = std::ssize(*drawn_);
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if ((*drawn_)[static_cast<size_t>(middle)] - middle <= index) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return index + low;
  }

  std::shared_ptr<const Dataset> data_;
  Indices drawn_;  // ascending
  bool has_drawn_;
};

}  // namespace

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kRecipes) {
    names.emplace_back(entry.name);
  }
  return names;
}

std::unique_ptr<Recipe> read_recipe(base::Config& config) {
  std::string name;
  config.read("recipe", name);
  const auto names = recipe_names();
  if (name.empty()) {
    throw UsageError("the recipe does not say what to train: begin it with recipe = \"cats\"");
  }
  const Entry* entry = std::find_if(std::begin(kRecipes), std::end(kRecipes),
                                    [&](const Entry& e) { return name == e.name; });
  if (entry == std::end(kRecipes)) {
    const std::string near = base::nearest(name, names);
    throw UsageError("there is no recipe \"{}\"{}; known: {}", name,
                     near.empty() ? "" : fmt::format(" (did you mean {}?)", near),
                     fmt::join(names, ", "));
  }
  auto recipe = entry->read(config);
  read_trainer_options(config, recipe->options_);
  config.finish(names_elsewhere());
  recipe->name_ = name;
  recipe->effective_ = config.effective();
  recipe->options_.description = run_description(config);
  recipe->options_.description_defaults = default_description(config);
  recipe->options_.values["config"] = config.remembered();
  return recipe;
}

namespace {

std::string with_settings_of(const Ingredients& made, const std::string& settings) {
  std::istringstream lines(settings);
  std::string text;
  bool is_model = false;
  for (std::string line; std::getline(lines, line);) {
    is_model = line.starts_with('[') ? line == "[model]" : is_model;
    const std::string key = line.substr(0, line.find(' '));
    const auto found = made.model_settings.find(key);
    text += is_model && found != made.model_settings.end()
                ? fmt::format("{} = {}\n", key, found->second)
                : line + "\n";
  }
  return text;
}

}  // namespace

std::string Recipe::effective(const Ingredients& made) const {
  return with_settings_of(made, effective_);
}

std::string Recipe::remembered(const Ingredients& made) const {
  return with_settings_of(made, options_.values.at("config"));
}

std::vector<std::string> if_given(const std::string& location) {
  return location.empty() ? std::vector<std::string>() : std::vector<std::string>{location};
}

bool is_model_file(const std::string& path) {
  const auto ends = [&](const char* end) { return path.ends_with(end); };
  return path.find('/') == std::string::npos &&
         (path == kModelConfigFile || ends(".safetensors") || ends(".bin") || ends(".pth") ||
          ends(".pt") || ends(".index.json"));
}

std::optional<AutoModel> kept_model(const MakeOptions& options, const std::string& architecture) {
  if (options.kept == nullptr || !options.kept->contains(kModelConfigFile)) {
    return std::nullopt;
  }
  ModelConfig config = parse_config({.json = options.kept->at(kModelConfigFile),
                                     .name = "the checkpoint's config.json",
                                     .architecture = architecture});
  std::visit([](auto& of_model) { of_model.initialise = false; }, config.options);
  return AutoModel::from_config(config);
}

std::string original_config(const std::string& location, Group& group) {
  return location.empty() || !storage::is_folder(location)
             ? ""
             : weights::read_small_file(location, kModelConfigFile, group).value_or("");
}

void HeldOutShare::read(base::Config& config) {
  config.read("data.held_out_share", share, {.min = 0, .max = 0.9});
  config.read("data.held_out_seed", seed, {.min = 0});
}

static int64_t num_held_out(int64_t size, double share) {
  // 0.07 of 100 is 7 and not 8, though the product is a little more than 7.
  constexpr double kRounding = 1e-12;
  return static_cast<int64_t>(std::ceil(static_cast<double>(size) * share * (1 - kRounding)));
}

TrainerData split_held_out(const std::shared_ptr<const Dataset>& data, const HeldOutShare& held_out,
                           std::shared_ptr<const Dataset> judged) {
  const int64_t all = data->size();
  const int64_t num_drawn = num_held_out(all, held_out.share);
  if (num_drawn == 0) {
    return {.train = data, .held_out = nullptr};
  }
  if (num_drawn >= all) {
    throw UsageError(
        "data.held_out_share = {} of {} samples leaves none to train on; lower it or give more "
        "data",
        held_out.share, all);
  }
  auto drawn =
      DistributedSampler({.num_samples = all, .seed = static_cast<uint64_t>(held_out.seed)})
          .indices(0);
  drawn.resize(static_cast<size_t>(num_drawn));
  drawn.shrink_to_fit();
  std::sort(drawn.begin(), drawn.end());
  const auto indices = std::make_shared<const std::vector<int64_t>>(std::move(drawn));
  return {.train = std::make_shared<PartOf>(data, indices, false),
          .held_out = std::make_shared<PartOf>(judged ? std::move(judged) : data, indices, true)};
}

void hold_out(Ingredients& made, const std::shared_ptr<const Dataset>& data,
              const HeldOutShare& share, std::shared_ptr<const Dataset> judged) {
  made.data = split_held_out(data, share, std::move(judged));
  if (made.data.held_out) {
    made.held_out = fmt::format("judged by {} of the {} {}, drawn with data.held_out_seed = {}",
                                made.data.held_out->size(), data->size(), made.samples, share.seed);
  }
}

void hold_out(Ingredients& made, const std::shared_ptr<const Dataset>& data,
              const std::shared_ptr<const Dataset>& given, const std::string& place) {
  made.data = {.train = data, .held_out = given};
  made.held_out = fmt::format("judged by the {} {} of {}", given->size(), made.samples, place);
}

void check_vocabulary(const Tokenizer& tokenizer, int64_t vocab_size, const std::string& path) {
  if (tokenizer.vocab_size() > vocab_size) {
    throw UsageError(
        "the tokenizer {} has ids up to {}, but the model's vocabulary (model.vocab_size) is {}: "
        "it "
        "has no place for ids from {} on; take the tokenizer that the model was made with, or "
        "raise "
        "model.vocab_size of a new model to {}",
        path, tokenizer.vocab_size() - 1, vocab_size, vocab_size, tokenizer.vocab_size());
  }
}

}  // namespace lockstep::train

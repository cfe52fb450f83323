#include "train/recipe.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/models/auto_model.h>

#include "storage/storage.h"
#include "train/trainer_config.h"
#include "weights/small_file.h"

namespace lockstep {
namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Recipe> (*read)(Config&);
};
constexpr Entry kRecipes[] = {{"cats", read_cats},
                              {"mytransformer", read_mytransformer},
                              {"gpt2", read_gpt2},
                              {"bert-classify", read_bert_classify},
                              {"resnet50", read_resnet50}};

class PartOf : public Dataset {
 public:
  PartOf(std::shared_ptr<const Dataset> data, int64_t first, int64_t size)
      : data_(std::move(data)), first_(first), size_(size) {}

  int64_t size() const override { return size_; }

  Batch batch(std::span<const SampleKey> samples) const override {
    std::vector<SampleKey> moved(samples.begin(), samples.end());
    for (SampleKey& sample : moved) {
      sample.index += first_;
    }
    return data_->batch(moved);
  }

  std::vector<std::string> classes() const override { return data_->classes(); }
  int64_t num_corrupt() const override { return data_->num_corrupt(); }

 private:
  std::shared_ptr<const Dataset> data_;
  int64_t first_;
  int64_t size_;
};

}  // namespace

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kRecipes) {
    names.emplace_back(entry.name);
  }
  return names;
}

std::unique_ptr<Recipe> read_recipe(Config& config) {
  std::string name;
  config.read("recipe", name);
  const auto names = recipe_names();
  if (name.empty()) {
    throw UsageError("the recipe does not say what to train: begin it with recipe = \"cats\"");
  }
  const Entry* entry = std::find_if(std::begin(kRecipes), std::end(kRecipes),
                                    [&](const Entry& e) { return name == e.name; });
  if (entry == std::end(kRecipes)) {
    const std::string near = nearest(name, names);
    throw UsageError("there is no recipe \"{}\"{}; known: {}", name,
                     near.empty() ? "" : fmt::format(" (did you mean {}?)", near),
                     fmt::join(names, ", "));
  }
  auto recipe = entry->read(config);
  read_trainer_options(config, recipe->options_);
  config.finish();
  recipe->name_ = name;
  recipe->effective_ = config.effective();
  recipe->options_.description = run_description(config);
  recipe->options_.description_defaults = default_description(config);
  recipe->options_.values["config"] = config.remembered();
  return recipe;
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
  return location.empty() || !is_folder(location)
             ? ""
             : read_small_file(location, kModelConfigFile, group).value_or("");
}

std::shared_ptr<const Dataset> part_of(std::shared_ptr<const Dataset> data, int64_t first,
                                       int64_t size) {
  return std::make_shared<PartOf>(std::move(data), first, size);
}

TrainerData split_held_out(std::shared_ptr<const Dataset> data, double share) {
  const int64_t all = data->size();
  const auto held_out = static_cast<int64_t>(std::ceil(static_cast<double>(all) * share));
  if (held_out == 0) {
    return {.train = std::move(data), .held_out = nullptr};
  }
  if (held_out >= all) {
    throw UsageError(
        "data.held_out_share = {} of {} samples leaves none to train on; lower it or give more "
        "data",
        share, all);
  }
  return {.train = part_of(data, 0, all - held_out),
          .held_out = part_of(data, all - held_out, held_out)};
}

}  // namespace lockstep

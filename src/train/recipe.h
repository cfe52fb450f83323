#pragma once

// Recipes: a model, its data and its settings, by name.
//
//   Config config = Config::from_file("recipes/mytransformer.toml");
//   const auto recipe = read_recipe(config);        // all that is wrong with the text is said here
//   Ingredients made = recipe->make(group);         // all that is wrong with files, here
//   Trainer trainer(*made.task, made.data, group, recipe->options());
//
// A recipe is a file of its own: recipe_cats.cpp and its neighbours. The settings of a run are its
// defaults, then those of the file, then those of --set; effective() is what came out.

#include <memory>
#include <string>
#include <vector>

#include <lockstep/train/trainer.h>

#include "base/config.h"

namespace lockstep {

class ConfiguredModule;

// What is made of a recipe.
struct Ingredients {
  std::unique_ptr<TrainingTask> task;
  TrainerData data;
  std::string samples = "samples";  // what they are called: "pictures"
  // What a model can do beside being judged; empty where it cannot.
  std::function<at::Tensor(const at::Tensor& ids_BT)> next_token_logits;  // -> [batch, time, V]
  std::function<at::Tensor(const at::Tensor& ids_BT)> embed;              // -> [batch, width]
  std::function<std::vector<int64_t>(const std::string& text)> encode;
  std::function<std::string(const std::vector<int64_t>& ids)> decode;
  int64_t max_positions = 0;                        // 0: no limit
  std::shared_ptr<const ConfiguredModule> exports;  // what save_pretrained writes; may be null
  // Keys of [model] that files decided, as TOML: what a pretrained model has, the recipe cannot
  // know when it is read.
  std::map<std::string, std::string> model_settings;
};

class Recipe {
 public:
  virtual ~Recipe() = default;

  // Collective: the ranks share the work of reading files.
  virtual Ingredients make(Group& group) const = 0;

  const std::string& name() const { return name_; }
  const TrainerOptions& options() const { return options_; }
  TrainerOptions& options() { return options_; }
  const std::string& effective() const { return effective_; }
  std::string effective(const Ingredients& made) const;  // with what files decided

 protected:
  friend std::unique_ptr<Recipe> read_recipe(Config& config);
  std::string name_;
  TrainerOptions options_;
  std::string effective_;
};

// Throws UsageError for an unknown recipe or key, with the nearest that exists, and for a value of
// another type or range.
std::unique_ptr<Recipe> read_recipe(Config& config);

std::vector<std::string> recipe_names();

// Of each recipe: reads [model] and [data] and its own defaults of the rest.
std::unique_ptr<Recipe> read_cats(Config& config);
std::unique_ptr<Recipe> read_mytransformer(Config& config);
std::unique_ptr<Recipe> read_gpt2(Config& config);
std::unique_ptr<Recipe> read_bert_classify(Config& config);
std::unique_ptr<Recipe> read_resnet50(Config& config);

// Samples [first, first + size) of a dataset, as one.
std::shared_ptr<const Dataset> part_of(std::shared_ptr<const Dataset> data, int64_t first,
                                       int64_t size);

// data.held_out_share of a dataset at its end, if no data of its own are given to be judged by.
TrainerData split_held_out(std::shared_ptr<const Dataset> data, double share);

}  // namespace lockstep

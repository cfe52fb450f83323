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
#include <optional>
#include <string>
#include <vector>

#include <lockstep/train/trainer.h>

#include "base/config.h"
#include "train/data_fingerprint.h"
#include "train/model_files.h"

namespace lockstep {
class AutoModel;
class ConfiguredModule;
class Tokenizer;
}  // namespace lockstep

namespace lockstep::train {

// What is made of a recipe.
struct Ingredients {
  std::unique_ptr<TrainingTask> task;
  TrainerData data;
  std::string samples = "samples";  // what they are called: "pictures"
  std::string held_out;             // which samples the model is judged by, in a sentence; or empty
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
  ModelFiles files;  // what the model needs beside its weights
};

// How a model is made again.
struct MakeOptions {
  // Files of a checkpoint, whose weights are loaded next: the model and its tokenizer are made of
  // these and of nothing else. Null, or without a config.json: as for a new run.
  const ModelFiles* kept = nullptr;
  bool with_data = true;  // false: no data are opened, if the model can be made without
  // The model is judged and not trained: where data of their own to judge by are given, the
  // training data are not opened and need not be there.
  bool judges_only = false;
};

class Recipe {
 public:
  virtual ~Recipe() = default;

  // Collective: the ranks share the work of reading files.
  virtual Ingredients make(Group& group, const MakeOptions& options) const = 0;
  Ingredients make(Group& group) const { return make(group, {}); }

  const std::string& name() const { return name_; }
  const TrainerOptions& options() const { return options_; }
  TrainerOptions& options() { return options_; }
  const std::string& effective() const { return effective_; }
  // These include what files decided. remembered(), for a checkpoint, makes every path absolute.
  std::string effective(const Ingredients& made) const;
  std::string remembered(const Ingredients& made) const;
  const std::vector<DataSource>& sources() const { return sources_; }

 protected:
  friend std::unique_ptr<Recipe> read_recipe(base::Config& config);
  std::string name_;
  TrainerOptions options_;
  std::string effective_;
  std::vector<DataSource> sources_;  // all that a run depends on beside its settings
};

// Throws UsageError for an unknown recipe or key, with the nearest that exists, and for a value of
// another type or range.
std::unique_ptr<Recipe> read_recipe(base::Config& config);

std::vector<std::string> recipe_names();

// Each of these reads [model] and [data] of its recipe, and has its own defaults for the rest.
std::unique_ptr<Recipe> read_cats(base::Config& config);
std::unique_ptr<Recipe> read_mytransformer(base::Config& config);
std::unique_ptr<Recipe> read_gpt2(base::Config& config);
std::unique_ptr<Recipe> read_bert_classify(base::Config& config);
std::unique_ptr<Recipe> read_resnet50(base::Config& config);

// Returns the location of a source, or nothing if it is empty.
std::vector<std::string> if_given(const std::string& location);

// Whether this file of a folder of published weights decides what the model is.
bool is_model_file(const std::string& path);

// The model that a checkpoint's config.json describes, its parameters as memory came; nothing if
// there is no config.json. `architecture` is as in AutoModelOptions.
std::optional<AutoModel> kept_model(const MakeOptions& options,
                                    const std::string& architecture = "");

// config.json of published weights; empty where they have none. Collective.
std::string original_config(const std::string& location, Group& group);

// data.held_out_share and data.held_out_seed: a part of the data, drawn, to judge by.
struct HeldOutShare {
  double share = 0;  // in [0, 0.9]
  int64_t seed = 1;  // one of its own: another train.seed is judged by the same samples

  void read(base::Config& config);
};

// The held-out samples are the first ceil(size * share) of the dataset's order in epoch 0 of a
// DistributedSampler of one rank with this seed, so that a file that is sorted does no harm; both
// parts keep the order of the dataset. `judged` is the dataset as it is to be judged, without
// augmentation say; null: `data`. Throws UsageError if nothing is left to train on.
TrainerData split_held_out(const std::shared_ptr<const Dataset>& data, const HeldOutShare& held_out,
                           std::shared_ptr<const Dataset> judged = nullptr);

// Sets made.data and the sentence: a drawn share of `data`, or, if `given` is there, all of `data`
// and `given`, which came from `place`. `data` may be null then, where nothing is trained.
void hold_out(Ingredients& made, const std::shared_ptr<const Dataset>& data,
              const HeldOutShare& share, std::shared_ptr<const Dataset> judged = nullptr);
void hold_out(Ingredients& made, const std::shared_ptr<const Dataset>& data,
              const std::shared_ptr<const Dataset>& given, const std::string& place);

// Throws UsageError if the tokenizer, which is that of `path`, has ids for which a model of
// `vocab_size` has no row: found when the first one comes, it would be an error of libtorch.
void check_vocabulary(const Tokenizer& tokenizer, int64_t vocab_size, const std::string& path);

}  // namespace lockstep::train

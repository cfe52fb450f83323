#include "train/cats_config.h"

#include <lockstep/base/error.h>

namespace lockstep {

std::string read_recipe_name(Config& config) {
  std::string name;
  config.read("recipe", name);
  if (name.empty()) {
    throw UsageError("the recipe does not say what to train: begin it with recipe = \"cats\"");
  }
  if (name != "cats") {
    throw UsageError("there is no recipe \"{}\"; known: cats", name);
  }
  return name;
}

CatsConfig read_cats_config(Config& config) {
  CatsConfig cats;
  config.read("model.channels", cats.channels, {.min = 1, .max = 1024});
  config.read("model.seed", cats.model_seed, {.min = 0});
  config.read("data.num_pictures", cats.num_pictures, {.min = 2, .max = 1e6});
  config.read("data.seed", cats.data_seed, {.min = 0});
  config.read("data.held_out_pictures", cats.held_out_pictures, {.min = 1, .max = 1e6});
  config.read("data.held_out_seed", cats.held_out_seed, {.min = 0});
  config.read("data.shuffle_labels", cats.shuffle_labels);
  config.read("train.epochs", cats.epochs, {.min = 1, .max = 1e6});
  config.read("train.batch_size", cats.batch_size, {.min = 1, .max = 1e6});
  config.read("train.optimizer", cats.optimizer, {"adamw", "sgd"});
  config.read("train.lr", cats.lr, {.min = 0, .max = 100});
  config.read("train.momentum", cats.momentum, {.min = 0, .max = 1});
  config.read("train.weight_decay", cats.weight_decay, {.min = 0, .max = 100});
  config.read("train.seed", cats.seed, {.min = 0});
  config.finish();
  if (cats.held_out_seed == cats.data_seed) {
    throw UsageError(
        "data.held_out_seed and data.seed are both {}: the model would be judged by the pictures "
        "it was trained on; give one of them another value",
        cats.data_seed);
  }
  return cats;
}

int64_t batch_per_rank(const CatsConfig& config, int num_ranks) {
  if (config.batch_size % num_ranks != 0) {
    const int64_t below = config.batch_size / num_ranks * num_ranks;
    const int64_t above = below + num_ranks;
    throw UsageError("train.batch_size = {} cannot be split evenly over {} ranks; use {}",
                     config.batch_size, num_ranks,
                     below == 0 ? fmt::format("{}", above) : fmt::format("{} or {}", below, above));
  }
  return config.batch_size / num_ranks;
}

}  // namespace lockstep

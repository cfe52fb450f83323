#pragma once

// The settings of the recipe "cats" and their defaults; recipes/cats.toml spells them out.

#include <cstdint>
#include <string>

#include "base/config.h"

namespace lockstep {

struct CatsConfig {
  // [model]
  int64_t channels = 16;   // of the first layer
  int64_t model_seed = 1;  // of the first weights

  // [data]
  int64_t num_pictures = 400;  // to train on, half of them cats
  int64_t data_seed = 1;
  int64_t held_out_pictures = 400;  // to judge by; never trained on
  int64_t held_out_seed = 2;        // another one than data_seed
  bool shuffle_labels = false;  // a control: with labels dealt at random there is nothing to learn

  // [train]
  int64_t epochs = 32;
  int64_t batch_size = 40;          // of all ranks together
  std::string optimizer = "adamw";  // or "sgd"
  double lr = 0.003;                // at the start; falls along half a cosine
  double momentum = 0.9;            // of sgd
  double weight_decay = 0.01;
  int64_t seed = 1;  // of the order and the jitter of the pictures
};

// The key `recipe` of a recipe. Throws UsageError, naming the recipes that exist, if it is none of
// them.
std::string read_recipe_name(Config& config);

// Everything else. Throws UsageError for a value of another type or range and for a key that does
// not exist.
CatsConfig read_cats_config(Config& config);

// What each rank computes of a batch. Throws UsageError, naming sizes that work, if ranks would get
// unequal parts.
int64_t batch_per_rank(const CatsConfig& config, int num_ranks);

}  // namespace lockstep

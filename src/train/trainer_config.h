#pragma once

// The sections [train] and [checkpoint] of a recipe.

#include <map>
#include <string>

#include <lockstep/train/trainer.h>

#include "base/config.h"

namespace lockstep::train {

// Replaces what the config sets; `options` holds the recipe's defaults. Throws UsageError.
void read_trainer_options(base::Config& config, TrainerOptions& options);

// Returns the settings, of those read so far, that two runs must share for one to go on from the
// other's checkpoint: all but how long, how often and how many threads, and all but paths, since
// what lies there is compared, and not where it lies (data_fingerprint.h).
std::string run_description(const base::Config& config);

// What run_description() would be if nothing had been set.
std::string default_description(const base::Config& config);

// What other programs call our settings: "learning_rate" for "lr".
const std::map<std::string, std::string>& names_elsewhere();

}  // namespace lockstep::train

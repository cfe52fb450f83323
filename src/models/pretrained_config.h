#pragma once

// Which model a location holds.

#include <lockstep/models/auto_model.h>

namespace lockstep::models {

// Collective: from AutoModelOptions::config, config.json or, for a ResNet, the tensors themselves;
// with what the options say instead. Throws UsageError, FormatError, IoError.
ModelConfig find_config(const Weights& weights, Group& group, const AutoModelOptions& options);

}  // namespace lockstep::models

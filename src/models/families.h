#pragma once

// The families of models: what config.json calls them, their classes, and how names in files relate
// to names in the module.

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/models/model_config.h>

#include "weights/name_map.h"

namespace lockstep::models {

class ConfigFields;

// The order is that of ModelConfig's variant.
enum class ModelKind { MyTransformer, GPT2, Bert, ResNet };

struct ModelFamily {
  ModelKind kind;
  std::string model_type;                  // in config.json
  std::vector<std::string> architectures;  // the first one is meant where none is named
  weights::NameRules names;
  std::vector<std::string> heads;  // names (without the prefix) that a file may lack begin so
};

const ModelFamily& family_of(const ModelConfig& config);

// Finds the family by model_type. Throws UsageError.
const ModelFamily& family_of(const ConfigFields& fields);

// One of the family's architectures: `name` itself, or the one that can take its place (GPT2Model's
// weights are all of GPT2LMHeadModel's). Throws UsageError with the nearest; `source` is for
// messages.
std::string known_architecture(const std::string& source, const ModelFamily& family,
                               const std::string& name);

// Whether a file may lack this parameter or buffer of the family's models.
bool belongs_to_head(const ModelFamily& family, const std::string& name);

}  // namespace lockstep::models

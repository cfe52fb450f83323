#pragma once

// What all of lockstep's models have in common.

#include <utility>
#include <variant>

#include <torch/nn/module.h>

#include <lockstep/models/model_config.h>

namespace lockstep {

// A module that knows what it was made of, so that it can be saved, and made again from what was
// saved. named_parameters() and named_buffers() are the state_dict of the original (transformers',
// torchvision's), without the second names of tied weights.
class ConfiguredModule : public torch::nn::Module {
 public:
  const ModelConfig& config() const { return config_; }

 protected:
  // Throws UsageError when an option is out of range.
  explicit ConfiguredModule(ModelConfig config) : config_(std::move(config)) {
    check_options(config_);
    // Whoever makes another model of this configuration wants first weights.
    std::visit([](auto& options) { options.initialise = true; }, config_.options);
  }

 private:
  ModelConfig config_;
};

}  // namespace lockstep

#pragma once

// The base of all models that lockstep brings.
//
// Example:
//   lockstep::GPT2 gpt;
//   std::cout << lockstep::config_json(gpt->config()) << "\n";

#include <utility>
#include <variant>

#include <torch/nn/module.h>

#include <lockstep/models/model_config.h>

namespace lockstep {

// A module that knows its configuration, so that it can be saved and made again from what was
// saved. named_parameters() and named_buffers() are the state_dict of the original in transformers
// or torchvision, without the second names of tied weights.
// Threads: one thread at a time, as for torch::nn::Module.
class ConfiguredModule : public torch::nn::Module {
 public:
  // The configuration, with `initialise` set to true: whoever makes another model of it wants
  // initial weights.
  const ModelConfig& config() const { return config_; }

 protected:
  // Throws UsageError when an option is out of range.
  explicit ConfiguredModule(ModelConfig config) : config_(std::move(config)) {
    check_options(config_);
    std::visit([](auto& options) { options.initialise = true; }, config_.options);
  }

 private:
  ModelConfig config_;
};

}  // namespace lockstep

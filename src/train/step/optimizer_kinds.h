#pragma once

// What libtorch's optimizers remember, so that it can be saved: torch::optim keeps it in classes
// that have nothing in common but their serialisation.

#include <memory>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

namespace lockstep::train {

// A tensor that an optimizer keeps for a parameter.
struct StateSlot {
  const char* name;
  at::Tensor& (*tensor)(torch::optim::OptimizerParamState& state);
  bool (*is_kept)(const torch::optim::OptimizerOptions& options);  // by a group with these
};

struct OptimizerKindInfo {
  const char* name;
  std::vector<StateSlot> slots;
  std::unique_ptr<torch::optim::OptimizerParamState> (*make_state)();
  // How many steps a parameter has made; null where that is not counted.
  int64_t* (*steps)(torch::optim::OptimizerParamState& state);
  // The settings of a group: "lr = 0.1, momentum = 0.9".
  std::string (*describe)(const torch::optim::OptimizerOptions& options);
};

// What is known of an optimizer of exactly this class; null if nothing is.
const OptimizerKindInfo* find_kind(const torch::optim::Optimizer& optimizer);

// "SGD, Adam, AdamW, RMSprop, Adagrad".
std::string known_kinds();

}  // namespace lockstep::train

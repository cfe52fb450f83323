#include "train/step/average.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>
#include <torch/nn/module.h>

#include "train/step/parameter_groups.h"

namespace lockstep::train {

ParameterAverage::ParameterAverage(const torch::nn::Module& module, double decay) : decay_(decay) {
  if (decay_ == 0) {
    return;
  }
  for (const auto& [name, parameter] : unique_parameters(module)) {
    names_.push_back(name);
    parameters_.push_back(parameter.detach());  // the same memory
    averages_.push_back(parameter.detach().clone());
  }
}

void ParameterAverage::update() {
  if (!averages_.empty()) {
    at::_foreach_lerp_(averages_, parameters_, 1 - decay_);
  }
}

std::vector<NamedTensor> ParameterAverage::state() const {
  std::vector<NamedTensor> state;
  for (size_t i = 0; i < names_.size(); ++i) {
    state.push_back({names_[i], averages_[i]});
  }
  return state;
}

void ParameterAverage::swap() {
  for (size_t i = 0; i < averages_.size(); ++i) {
    const at::Tensor parameter = parameters_[i].clone();
    parameters_[i].copy_(averages_[i]);
    averages_[i].copy_(parameter);
  }
}

}  // namespace lockstep::train

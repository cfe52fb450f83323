#include "train/step/average.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <lockstep/base/log.h>

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
  if (!averages_.empty()) {
    const auto largest = std::max_element(
        averages_.begin(), averages_.end(),
        [](const at::Tensor& a, const at::Tensor& b) { return a.nbytes() < b.nbytes(); });
    between_ =
        at::empty({static_cast<int64_t>(largest->nbytes())}, largest->options().dtype(at::kByte));
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
    const at::Tensor parameter = between_.narrow(0, 0, static_cast<int64_t>(averages_[i].nbytes()))
                                     .view(averages_[i].scalar_type())
                                     .view(averages_[i].sizes());
    parameter.copy_(parameters_[i]);
    parameters_[i].copy_(averages_[i]);
    averages_[i].copy_(parameter);
  }
}

void ParameterAverage::swap_back() noexcept {
  try {
    swap();
  } catch (const std::exception& error) {  // the device has failed, and with it the run
    log::error("train", "the parameters stay in the place of their average: {}", error.what());
  }
}

}  // namespace lockstep::train

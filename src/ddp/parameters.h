#pragma once

// The model as the reducer sees it: which tensors are trained together and which are only kept
// equal.

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace lockstep::ddp {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct TrainedParameter {
  std::string name;
  at::Tensor tensor;
  bool has_sparse_gradient = false;  // of an Embedding made with sparse(true)
  at::ScalarType type = at::kFloat;  // when the model was wrapped
  std::vector<int64_t> sizes = {};
  at::Device device = at::kCPU;
};

struct ModelTensors {
  std::vector<TrainedParameter> trained;  // require a gradient, each tensor once (tied weights)
  NamedTensors parameters;                // all but ignored ones, each once
  NamedTensors buffers;                   // all but ignored ones
};

// In the model's order. Throws UsageError for a name in `ignored` that the model does not have, and
// if nothing is left to train.
ModelTensors tensors_of(const torch::nn::Module& module, const std::vector<std::string>& ignored);

// Throws UsageError unless all parameters are on one device, and all buffers there or on the CPU.
void check_one_device(const ModelTensors& tensors);

// Throws UsageError if a parameter has come, changed its shape, type or device, or been unfrozen
// since tensors_of(): the hooks would not see it.
void check_unchanged(const torch::nn::Module& module, const std::vector<std::string>& ignored,
                     const ModelTensors& before);

}  // namespace lockstep::ddp

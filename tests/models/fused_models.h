#pragma once

// A step of training of each model, with the functions of device/functions/ and with libtorch's
// operators.

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "device/functions/functions.h"

namespace lockstep::testing_support {

inline constexpr const char* kLanguageModels[] = {
    "gpt2",        "gpt2_erf",       "mytransformer", "mytransformer_without_positions",
    "bert_masked", "bert_classifier"};
inline constexpr const char* kPictureModels[] = {"resnet", "resnet_bottleneck"};

struct StepOptions {
  device::FunctionsUse use = device::FunctionsUse::WhereFast;
  at::Device device = at::kCPU;
  bool bfloat16 = false;  // autocast in the forward pass, as Trainer does it
  double dropout = 0;
  int64_t seed = 1;  // of the dropouts
};

struct StepResult {
  double loss = 0;
  // On the CPU, in float32. Gradients, buffers, and parameters after a step of SGD.
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, at::Tensor> buffers;
  std::map<std::string, at::Tensor> parameters;
};

// One forward and backward pass of a small model, and an update.
StepResult take_step(const std::string& model, const StepOptions& options);

// The largest difference of two tensors of each kind, relative to the largest element of its tensor
// and of any; and where it is.
struct StepDifference {
  double loss = 0;
  double gradient = 0;
  double buffer = 0;
  double parameter = 0;
  std::string where;
};
StepDifference difference_of(const StepResult& one, const StepResult& other);

}  // namespace lockstep::testing_support

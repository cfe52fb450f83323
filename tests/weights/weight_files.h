#pragma once

// Files of weights that exist only in a test, and what they hold.

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/weights/weights.h>

namespace lockstep::test {

using Named = std::map<std::string, at::Tensor>;

// Values that depend on the name and place alone: what another rank's process makes again.
at::Tensor patterned(const std::string& name, std::vector<int64_t> shape,
                     at::ScalarType type = at::kFloat);

// A small model's tensors: fp32, fp16, bf16, int64, a scalar, an empty one and one of 3 MB.
Named sample_weights();

void write_torch_file(const std::string& path, const Named& tensors);
void write_safetensors_file(const std::string& path, const Named& tensors);

// One target per tensor, of the same shape and type (or all of `type`), filled with something else.
std::vector<WeightTarget> targets_for(const Named& tensors,
                                      at::ScalarType type = at::ScalarType::Undefined);

// Same bits as `tensors`, converted to each target's type.
void expect_loaded(const std::vector<WeightTarget>& targets, const Named& tensors);

}  // namespace lockstep::test

#pragma once

// The kernels of a training step with tensors to work on, at any size and on any device.

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "device/kernels.h"

namespace lockstep {

struct KernelPlace {
  const LockstepKernels* kernels = nullptr;
  at::Device device = at::kCPU;
  at::ScalarType type = at::kBFloat16;  // of activations
  int64_t tokens = 0;
  bool is_small = false;  // other sizes are a small model's, too
  int sets = 1;           // of tensors, each enough for one call
};

struct KernelCase {
  std::string shape;
  double bytes = 0;  // that a call must read and write
  std::function<void(int set)> run;
  std::function<void()> refill;     // before each measurement, where a call spoils its input
  std::vector<at::Tensor> results;  // of set 0
};

struct KernelEntry {
  std::string name;
  bool has_types = true;  // measured with bfloat16 activations, too
  std::function<KernelCase(const KernelPlace&)> make;
};

const std::vector<KernelEntry>& kernel_entries();

}  // namespace lockstep

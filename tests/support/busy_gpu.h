#pragma once

// Work for a GPU, so that a test sees who does not wait for it, and who waits without need.

#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include "support/gpu.h"

namespace lockstep::testing_support {

// Keeps the current stream busy for `turns` times some milliseconds.
inline void keep_gpu_busy(int turns = 4) {
  static const at::Tensor matrix = at::full({4096, 4096}, 1e-4f, at::TensorOptions(gpu()));
  for (int i = 0; i < turns; ++i) {
    at::mm(matrix, matrix);
  }
}

}  // namespace lockstep::testing_support

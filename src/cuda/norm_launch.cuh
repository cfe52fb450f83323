#pragma once

// Which of a norm's kernels takes rows of which length. A translation unit for each type and
// direction, since these take long to compile.

#include <cuda_runtime.h>

#include "device/plugin_kernels.h"

namespace lockstep::cuda {

// Blocks of the backward pass, at most: so many partial sums there are.
inline constexpr int64_t kMaxNormBlocks = 1600;

template <int kStepsValue, int kWarpsValue, int kRowsValue, int kBlocksValue,
          int kBackwardBlocksValue>
struct NormShape {
  static constexpr int kSteps = kStepsValue;    // vectors of each thread
  static constexpr int kWarps = kWarpsValue;    // of a row
  static constexpr int kRows = kRowsValue;      // of a block, at once
  static constexpr int kBlocks = kBlocksValue;  // at least so many on a multiprocessor
  static constexpr int kBackwardBlocks = kBackwardBlocksValue;
};

// Calls `function` with an instance of NormShape for rows of `vectors` vectors; returns whether
// there is one.
template <typename Function>
bool with_norm_shape(int64_t vectors, Function function) {
  if (vectors <= 32) {
    function(NormShape<1, 1, 4, 8, 4>());
  } else if (vectors <= 96) {
    function(NormShape<3, 1, 4, 8, 3>());
  } else if (vectors <= 256) {
    function(NormShape<2, 4, 1, 8, 4>());
  } else if (vectors <= 512) {
    function(NormShape<4, 4, 1, 6, 2>());
  } else if (vectors <= 1024) {
    function(NormShape<2, 16, 1, 2, 1>());
  } else {
    return false;
  }
  return true;
}

template <typename T>
cudaError_t launch_norm_forward(const LockstepNormForward& arguments, cudaStream_t stream);
template <typename T>
cudaError_t launch_norm_backward(const LockstepNormBackward& arguments, cudaStream_t stream);

}  // namespace lockstep::cuda

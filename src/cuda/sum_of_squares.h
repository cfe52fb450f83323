#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

namespace lockstep::cuda {

// Arrays of the device; the lists themselves are on the host.
struct Arrays {
  const void* const* data = nullptr;
  const int64_t* counts = nullptr;
  const int32_t* types = nullptr;  // 0: float32, 1: bfloat16, 2: float16
  int32_t num = 0;
};

inline constexpr int kSquaresBlocks = 528;  // partial sums
inline constexpr size_t kSquaresScratchBytes = kSquaresBlocks * sizeof(double);

// out[0] = the sum of the squares of all elements. See plugin_api.h.
cudaError_t launch_sum_of_squares(const Arrays& arrays, double* out, void* scratch,
                                  cudaStream_t stream);

}  // namespace lockstep::cuda

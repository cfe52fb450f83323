#pragma once

// What the plug-in's functions say of their arguments and of CUDA: null, or a text that stays.

#include <cuda_runtime.h>

#include "device/plugin_kernels.h"

namespace lockstep::cuda {

const char* text_of(cudaError_t error);

// Null if the kernels know the type of these activations and the sizes make sense.
const char* check_matrix(int32_t type, int64_t rows, int64_t columns);
const char* check_dropout(const LockstepDropout& dropout);

}  // namespace lockstep::cuda

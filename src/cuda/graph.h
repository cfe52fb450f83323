#pragma once

// Graphs by libtorch's own at::cuda::CUDAGraph; device/plugin_api.h says what each function does.

#include "device/plugin_api.h"

namespace lockstep::cuda {

extern const LockstepGraphs kGraphs;

}  // namespace lockstep::cuda

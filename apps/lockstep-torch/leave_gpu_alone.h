#pragma once

#include <cstdlib>

namespace lockstep {

// For a command that needs no GPU: call it before init(), which would load what CUDA needs.
inline void leave_gpu_alone() {
  ::setenv("LOCKSTEP_DEVICE", "cpu", /*overwrite=*/1);
}

}  // namespace lockstep

#pragma once

// The kernels of one instruction set each. kernels_body.h is compiled once per set, by the file
// named kernels_<set>.cpp and with that set's flags; kernels.cpp chooses between them at run time.

#include "shm/kernels.h"

namespace lockstep::shm {

// The kernel for `key`, or nullptr if there is no such pair. The caller must know that the
// processor can run it.
ReduceKernel find_baseline_kernel(const KernelKey& key);
ReduceKernel find_avx2_kernel(const KernelKey& key);    // x86-64 only
ReduceKernel find_avx512_kernel(const KernelKey& key);  // x86-64 only

}  // namespace lockstep::shm

// What every processor of the architecture runs: SSE2 on x86-64, NEON on AArch64.

#include "shm/kernels_body.h"
#include "shm/kernels_isa.h"

namespace lockstep::shm {

ReduceKernel find_baseline_kernel(const KernelKey& key) {
  return lookup(key);
}

}  // namespace lockstep::shm

// Compiled with -mavx2 -mf16c, and without -mfma: a fused multiply-add would round differently.

#include "shm/kernels_body.h"
#include "shm/kernels_isa.h"

namespace lockstep::shm {

ReduceKernel find_avx2_kernel(const KernelKey& key) {
  return lookup(key);
}

}  // namespace lockstep::shm

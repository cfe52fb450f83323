// Compiled with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512.

#include "shm/kernels_body.h"
#include "shm/kernels_isa.h"

namespace lockstep::shm {

ReduceKernel find_avx512_kernel(const KernelKey& key) {
  return lookup(key);
}

}  // namespace lockstep::shm

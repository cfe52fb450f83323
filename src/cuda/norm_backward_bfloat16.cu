#include "cuda/norm_backward_launch.cuh"

namespace lockstep::cuda {

template cudaError_t launch_norm_backward<bfloat16>(const LockstepNormBackward&, cudaStream_t);

}  // namespace lockstep::cuda

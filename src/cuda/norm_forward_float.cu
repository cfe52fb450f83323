#include "cuda/norm_forward_launch.cuh"

namespace lockstep::cuda {

template cudaError_t launch_norm_forward<float>(const LockstepNormForward&, cudaStream_t);

}  // namespace lockstep::cuda

// The plug-in's table. Everything about CUDA that libtorch does not do by itself is in this folder,
// behind plain functions; it knows nothing of the rest of lockstep.

#include <cuda_runtime.h>

#include "cuda/errors.h"
#include "cuda/graph.h"
#include "cuda/kernels.h"
#include "cuda/sum_of_squares.h"
#include "device/plugin_api.h"

namespace lockstep::cuda {
namespace {

const char* pin(void* data, size_t bytes) {
  return text_of(cudaHostRegister(data, bytes, cudaHostRegisterPortable));
}

const char* unpin(void* data) {
  return text_of(cudaHostUnregister(data));
}

// Going back to a device makes a context on it, which costs its memory: a caller for whom `device`
// is the current one does not go anywhere.
const char* memory(int32_t device, size_t* free_bytes, size_t* total_bytes) {
  int before = 0;
  cudaError_t error = cudaGetDevice(&before);
  if (error == cudaSuccess && before != device) {
    error = cudaSetDevice(device);
  }
  if (error == cudaSuccess) {
    error = cudaMemGetInfo(free_bytes, total_bytes);
    if (before != device) {
      cudaSetDevice(before);
    }
  }
  return text_of(error);
}

const char* sum_of_squares(const void* const* data, const int64_t* counts, const int32_t* types,
                           int32_t num, double* out, void* scratch, void* stream) {
  const Arrays arrays{.data = data, .counts = counts, .types = types, .num = num};
  return text_of(launch_sum_of_squares(arrays, out, scratch, static_cast<cudaStream_t>(stream)));
}

const LockstepKernels kKernels = {
    .norm_forward = norm_forward,
    .norm_backward = norm_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .cross_entropy = cross_entropy,
    .scale = scale,
    .embedding_forward = embedding_forward,
    .embedding_sort = embedding_sort,
    .embedding_backward = embedding_backward,
    .position_backward = position_backward,
    .step_begin = step_begin,
    .adamw = adamw,
    .sgd = sgd,
    .batch_norm_forward = batch_norm_forward,
    .batch_norm_backward = batch_norm_backward,
    .norm_scratch_bytes = norm_scratch_bytes,
    .column_scratch_bytes = column_scratch_bytes,
    .embedding_sort_scratch_bytes = embedding_sort_scratch_bytes,
    .embedding_scratch_bytes = embedding_scratch_bytes,
};

const LockstepCudaPlugin kPlugin = {
    LOCKSTEP_CUDA_PLUGIN_VERSION, pin,       unpin, memory, sum_of_squares,
    kSquaresScratchBytes,         &kKernels, &kGraphs,
};

}  // namespace
}  // namespace lockstep::cuda

extern "C" __attribute__((visibility("default"))) const LockstepCudaPlugin* lockstep_cuda_plugin() {
  return &lockstep::cuda::kPlugin;
}

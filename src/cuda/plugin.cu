// The plug-in's table. Everything about CUDA that libtorch does not do by itself is in this folder,
// behind plain functions; it knows nothing of the rest of lockstep.

#include <cuda_runtime.h>

#include "cuda/sum_of_squares.h"
#include "device/plugin_api.h"

namespace lockstep::cuda {
namespace {

const char* text_of(cudaError_t error) {
  if (error == cudaSuccess) {
    return nullptr;
  }
  cudaGetLastError();  // or the next call would report it again
  return cudaGetErrorString(error);
}

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
  return text_of(
      launch_sum_of_squares(arrays, out, scratch, static_cast<cudaStream_t>(stream)));
}

const LockstepCudaPlugin kPlugin = {
    LOCKSTEP_CUDA_PLUGIN_VERSION, pin, unpin, memory, sum_of_squares, kSquaresScratchBytes,
};

}  // namespace
}  // namespace lockstep::cuda

extern "C" __attribute__((visibility("default"))) const LockstepCudaPlugin* lockstep_cuda_plugin() {
  return &lockstep::cuda::kPlugin;
}

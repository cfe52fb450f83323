#include "cuda/errors.h"
#include "cuda/vectors.cuh"

namespace lockstep::cuda {

const char* text_of(cudaError_t error) {
  if (error == cudaSuccess) {
    return nullptr;
  }
  cudaGetLastError();  // or the next call would report it again
  return cudaGetErrorString(error);
}

const char* check_matrix(int32_t type, int64_t rows, int64_t columns) {
  if (type != LOCKSTEP_FLOAT32 && type != LOCKSTEP_BFLOAT16) {
    return "activations must be float32 or bfloat16";
  }
  if (rows < 0 || columns <= 0 || columns > INT32_MAX / 2 || rows > INT32_MAX) {
    return "rows must be in [0, 2^31) and columns in [1, 2^30)";
  }
  return nullptr;
}

const char* check_dropout(const LockstepDropout& dropout) {
  if (!(dropout.probability >= 0) || dropout.probability >= 0.9999f) {
    return "a dropout's probability must be in [0, 0.9999)";
  }
  if (dropout.probability > 0 && dropout.state == nullptr) {
    return "a dropout needs its state, the seed and the offset";
  }
  return nullptr;
}

namespace {

constexpr int kMaxDevices = 64;

int ask(cudaDeviceAttr attribute, int (&known)[kMaxDevices]) {
  int device = 0;
  cudaGetDevice(&device);
  int& value = known[device % kMaxDevices];
  if (value == 0) {
    cudaDeviceGetAttribute(&value, attribute, device);
  }
  return value;
}

}  // namespace

int num_multiprocessors() {
  static int known[kMaxDevices];
  return ask(cudaDevAttrMultiProcessorCount, known);
}

}  // namespace lockstep::cuda

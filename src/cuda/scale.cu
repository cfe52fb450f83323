#include "cuda/errors.h"
#include "cuda/kernels.h"
#include "cuda/vectors.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocks = 4;  // of each multiprocessor: few, so that a factor of 1 is found soon

// The first `wide` elements go N at a time.
template <typename T, int N>
__global__ __launch_bounds__(kThreads) void scale_elements(LockstepScale a, int64_t wide) {
  const float factor = *a.factor;
  if (factor == 1) return;
  auto* data = static_cast<T*>(a.data);
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  for (int64_t at = first * N; at < wide; at += threads * N) {
    float values[N];
    unpack(load<N>(data + at), values);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] *= factor;
    store(data + at, pack<T>(values));
  }
  for (int64_t at = wide + first; at < a.count; at += threads) {
    float value[1];
    unpack(load<1>(data + at), value);
    value[0] *= factor;
    store(data + at, pack<T>(value));
  }
}

template <typename T>
void launch(const LockstepScale& a, cudaStream_t stream) {
  constexpr int N = kWide<T>;
  const int64_t wide = is_wide(a.data) ? a.count / N * N : 0;
  const int64_t needed = ceil_div(a.count, kThreads * N);
  const int64_t most = int64_t{num_multiprocessors()} * kBlocks;
  const auto blocks = static_cast<unsigned>(needed < most ? needed : most);
  scale_elements<T, N><<<blocks, kThreads, 0, stream>>>(a, wide);
}

}  // namespace

const char* scale(const LockstepScale* arguments, void* stream) {
  const LockstepScale& a = *arguments;
  if (a.type != LOCKSTEP_FLOAT32 && a.type != LOCKSTEP_BFLOAT16) {
    return "what is scaled must be float32 or bfloat16";
  }
  if (a.count <= 0) {
    return a.count == 0 ? nullptr : "a count is negative";
  }
  const auto on = static_cast<cudaStream_t>(stream);
  a.type == LOCKSTEP_FLOAT32 ? launch<float>(a, on) : launch<bfloat16>(a, on);
  return text_of(cudaGetLastError());
}

}  // namespace lockstep::cuda

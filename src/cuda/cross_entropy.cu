#include "cuda/cross_entropy.cuh"
#include "cuda/errors.h"
#include "cuda/kernels.h"

namespace lockstep::cuda {
namespace {

constexpr int kCountThreads = 1024;
constexpr int kThreads = 768;
constexpr int kSteps = 4;   // vectors of each thread in flight
constexpr int kBlocks = 2;  // so few rows at once that they stay in the second-level cache

// Adds over a block; thread 0 has the sum.
__device__ double add_block(double value) {
  __shared__ double sums[kCountThreads];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (int half = kCountThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  return sums[0];
}

__global__ __launch_bounds__(kCountThreads) void count_labels(LockstepCrossEntropy a) {
  int count = 0;
#pragma unroll 8
  for (int64_t row = threadIdx.x; row < a.rows; row += kCountThreads) {
    count += a.labels[row] != a.ignored ? 1 : 0;
  }
  const double number = add_block(count);
  if (threadIdx.x == 0) a.result[1] = static_cast<float>(number);
}

__global__ __launch_bounds__(kCountThreads) void add_losses(LockstepCrossEntropy a) {
  double sum = 0;
#pragma unroll 8
  for (int64_t row = threadIdx.x; row < a.rows; row += kCountThreads) sum += a.losses[row];
  sum = add_block(sum);
  if (threadIdx.x == 0) a.result[0] = static_cast<float>(sum / a.result[1]);
}

template <typename T, int N>
void launch_rows(const LockstepCrossEntropy& a, cudaStream_t stream) {
  cross_entropy_rows<T, N, kThreads, kSteps, kBlocks>
      <<<static_cast<unsigned>(a.rows), kThreads, 0, stream>>>(a, a.result + 1);
}

template <typename T>
void launch(const LockstepCrossEntropy& a, cudaStream_t stream) {
  const bool wide = is_wide(a.logits) && a.stride % kWide<T> == 0;
  wide ? launch_rows<T, kWide<T>>(a, stream) : launch_rows<T, 1>(a, stream);
}

}  // namespace

const char* cross_entropy(const LockstepCrossEntropy* arguments, void* stream) {
  const LockstepCrossEntropy& a = *arguments;
  if (const char* error = check_matrix(a.type, a.rows, a.stride)) return error;
  if (a.classes <= 0 || a.classes > a.stride) return "classes must be in [1, stride]";
  const auto on = static_cast<cudaStream_t>(stream);
  count_labels<<<1, kCountThreads, 0, on>>>(a);
  if (a.rows > 0) {
    a.type == LOCKSTEP_FLOAT32 ? launch<float>(a, on) : launch<bfloat16>(a, on);
  }
  add_losses<<<1, kCountThreads, 0, on>>>(a);
  return text_of(cudaGetLastError());
}

}  // namespace lockstep::cuda

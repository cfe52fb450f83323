#pragma once

// The norm of rows that are too long for registers, or not made of whole 16 bytes: a block per
// row, which reads it again for each step.

#include "cuda/dropout.cuh"

namespace lockstep::cuda {

inline constexpr int kAnyThreads = 256;
inline constexpr int kAnyWarps = kAnyThreads / 32;
inline constexpr int kAnyBlocks = 512;

template <typename T>
__device__ __forceinline__ float element(const void* from, int64_t at) {
  return static_cast<float>(static_cast<const T*>(from)[at]);
}

template <typename T>
__global__ __launch_bounds__(kAnyThreads) void norm_forward_any(LockstepNormForward a) {
  __shared__ float shared[64];
  const void* sums = a.branch == nullptr ? a.x : a.sum;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t begin = row * a.columns;
    float mean = 0;
    for (int64_t at = begin + threadIdx.x; at < begin + a.columns; at += kAnyThreads) {
      float value = element<T>(a.x, at);
      if (a.branch != nullptr) {
        float more[1] = {element<T>(a.branch, at)};
        if (a.dropout.probability > 0) Dropper<true>(a.dropout).apply(at, more);
        const T sum = static_cast<T>(value + more[0]);
        static_cast<T*>(a.sum)[at] = sum;
        value = static_cast<float>(sum);
      }
      mean += value;
    }
    mean = add_warps<kAnyWarps>(mean, shared) / a.columns;
    float variance = 0;
    for (int64_t at = begin + threadIdx.x; at < begin + a.columns; at += kAnyThreads) {
      const float away = element<T>(sums, at) - mean;
      variance += away * away;
    }
    variance = add_warps<kAnyWarps>(variance, shared + 32) / a.columns;
    const float rstd = 1.0f / sqrtf(variance + a.epsilon);
    if (threadIdx.x == 0) {
      a.mean[row] = mean;
      a.rstd[row] = rstd;
    }
    for (int column = threadIdx.x; column < a.columns; column += kAnyThreads) {
      const float normal = (element<T>(sums, begin + column) - mean) * rstd;
      static_cast<T*>(a.out)[begin + column] =
          static_cast<T>(normal * a.weight[column] + a.bias[column]);
    }
    __syncthreads();
  }
}

// partial[gridDim.x][3][columns], of which a thread has every kAnyThreads-th column to itself.
template <typename T>
__global__ __launch_bounds__(kAnyThreads) void norm_backward_any(LockstepNormBackward a,
                                                                 float* partial) {
  __shared__ float shared[64];
  float* own = partial + static_cast<int64_t>(blockIdx.x) * 3 * a.columns;
  for (int64_t i = threadIdx.x; i < a.columns; i += kAnyThreads) {
    own[i] = own[a.columns + i] = own[2 * a.columns + i] = 0;
  }
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t begin = row * a.columns;
    const float mean = a.mean[row];
    const float rstd = a.rstd[row];
    float first = 0;
    float second = 0;
    for (int64_t i = threadIdx.x; i < a.columns; i += kAnyThreads) {
      const float grad = element<T>(a.grad_out, begin + i);
      const float normal = (element<T>(a.sum, begin + i) - mean) * rstd;
      own[i] += grad * normal;
      own[a.columns + i] += grad;
      first += grad * a.weight[i];
      second += grad * a.weight[i] * normal;
    }
    first = add_warps<kAnyWarps>(first, shared) / a.columns;
    second = add_warps<kAnyWarps>(second, shared + 32) / a.columns;
    for (int64_t i = threadIdx.x; i < a.columns; i += kAnyThreads) {
      const float grad = element<T>(a.grad_out, begin + i);
      const float normal = (element<T>(a.sum, begin + i) - mean) * rstd;
      float value[1] = {rstd * (grad * a.weight[i] - first - normal * second)};
      if (a.grad_sum != nullptr) value[0] += element<T>(a.grad_sum, begin + i);
      static_cast<T*>(a.grad_x)[begin + i] = static_cast<T>(value[0]);
      if (a.dropout.probability > 0) Dropper<true>(a.dropout).apply(begin + i, value);
      if (a.grad_branch != nullptr) {
        static_cast<T*>(a.grad_branch)[begin + i] = static_cast<T>(value[0]);
      }
      own[2 * a.columns + i] += value[0];
    }
    __syncthreads();
  }
}

}  // namespace lockstep::cuda

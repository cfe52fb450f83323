#pragma once

#include "cuda/dropout.cuh"

namespace lockstep::cuda {

// A row is in the registers of kWarps warps, kSteps vectors of N elements in each thread. A block
// of one warp per row has kRows rows at once and walks over the matrix, so that a thread reads its
// columns' weights once.
template <typename T, int N, int kSteps, int kWarps, int kRows, bool kDrops>
struct NormForward {
  static constexpr int kPerRow = kWarps * 32;
  static constexpr int kThreads = kPerRow * kRows;

  const LockstepNormForward& a;
  float* shared;
  Dropper<kDrops> dropper{a.dropout};
  int thread = threadIdx.x % kPerRow;

  __device__ __forceinline__ int column(int step) const { return (step * kPerRow + thread) * N; }
  __device__ __forceinline__ bool has(int step) const { return column(step) < a.columns; }

  // What is normalised: x, or the sum of x and the branch as it is stored.
  __device__ __forceinline__ void read(int64_t begin, Raw<T, N> (&sum)[kSteps]) const {
    const auto* x = static_cast<const T*>(a.x) + begin;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (has(step)) sum[step] = load<N, Use::Once>(x + column(step));
    }
    if (a.branch == nullptr) return;
    const auto* branch = static_cast<const T*>(a.branch) + begin;
    Raw<T, N> added[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (has(step)) added[step] = load<N, Use::Once>(branch + column(step));
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (!has(step)) continue;
      float values[N];
      float more[N];
      unpack(sum[step], values);
      unpack(added[step], more);
      dropper.apply(begin + column(step), more);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] += more[i];
      sum[step] = pack<T>(values);
      store(static_cast<T*>(a.sum) + begin + column(step), sum[step]);
    }
  }

  __device__ __forceinline__ void row(int64_t row) const {
    const int64_t begin = row * a.columns;
    Raw<T, N> sum[kSteps];
    read(begin, sum);
    float mean = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (!has(step)) continue;
      float values[N];
      unpack(sum[step], values);
#pragma unroll
      for (int i = 0; i < N; ++i) mean += values[i];
    }
    mean = add_warps<kWarps>(mean, shared) / a.columns;
    float variance = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (!has(step)) continue;
      float values[N];
      unpack(sum[step], values);
#pragma unroll
      for (int i = 0; i < N; ++i) variance += (values[i] - mean) * (values[i] - mean);
    }
    variance = add_warps<kWarps>(variance, shared + 32) / a.columns;
    const float rstd = 1.0f / sqrtf(variance + a.epsilon);
    if (thread == 0) {
      a.mean[row] = mean;
      a.rstd[row] = rstd;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (!has(step)) continue;
      float values[N];
      float weight[N];
      float bias[N];
      unpack(sum[step], values);
      load_floats(a.weight + column(step), weight);
      load_floats(a.bias + column(step), bias);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        values[i] = (values[i] - mean) * rstd * weight[i] + bias[i];
      }
      store(static_cast<T*>(a.out) + begin + column(step), pack<T>(values));
    }
  }
};

template <typename T, int N, int kSteps, int kWarps, int kRows, bool kDrops, int kBlocks>
__global__ __launch_bounds__(32 * kWarps * kRows,
                             kBlocks) void norm_forward_rows(LockstepNormForward a) {
  __shared__ float shared[64];
  const NormForward<T, N, kSteps, kWarps, kRows, kDrops> norm{a, shared};
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kRows;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / (kWarps * 32);
       row < a.rows; row += stride) {
    norm.row(row);
    if constexpr (kWarps > 1) __syncthreads();
  }
}

}  // namespace lockstep::cuda

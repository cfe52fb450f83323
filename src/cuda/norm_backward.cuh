#pragma once

#include "cuda/dropout.cuh"

namespace lockstep::cuda {

// As the forward pass: a row is in the registers of kWarps warps. A thread keeps the sums of its
// columns over all rows that it meets; the block adds them up at its end, in the order of its
// warps, and the sums of the blocks are added by another kernel.
template <typename T, int N, int kSteps, int kWarps, int kRows, bool kDrops, bool kBranchBias>
struct NormBackward {
  static constexpr int kPerRow = kWarps * 32;
  static constexpr int kThreads = kPerRow * kRows;

  const LockstepNormBackward& a;
  float* shared;
  Dropper<kDrops> dropper{a.dropout};
  int thread = threadIdx.x % kPerRow;
  float grad_weight[kSteps][N];
  float grad_bias[kSteps][N];
  float grad_branch_bias[kBranchBias ? kSteps : 1][N];

  __device__ __forceinline__ int column(int step) const { return (step * kPerRow + thread) * N; }
  __device__ __forceinline__ bool has(int step) const { return column(step) < a.columns; }

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        grad_weight[step][i] = grad_bias[step][i] = 0;
        if constexpr (kBranchBias) grad_branch_bias[step][i] = 0;
      }
    }
  }

  __device__ __forceinline__ void row(int64_t row) {
    const int64_t begin = row * a.columns;
    const auto* grad_out = static_cast<const T*>(a.grad_out) + begin;
    const auto* sum = static_cast<const T*>(a.sum) + begin;
    const auto* grad_sum = static_cast<const T*>(a.grad_sum);
    Raw<T, N> out_raw[kSteps];
    Raw<T, N> sum_raw[kSteps];
    Raw<T, N> more_raw[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (has(step)) {
        out_raw[step] = load<N, Use::Once>(grad_out + column(step));
        sum_raw[step] = load<N, Use::Once>(sum + column(step));
      }
    }
    if (grad_sum != nullptr) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (has(step)) more_raw[step] = load<N, Use::Once>(grad_sum + begin + column(step));
      }
    }
    const float mean = a.mean[row];
    const float rstd = a.rstd[row];
    const float shift = -mean * rstd;  // the normalised value is x * rstd + shift
    float first = 0;                   // the mean of grad_out * weight
    float second = 0;                  // and of that times the normalised value
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (!has(step)) continue;
      float grad[N];
      float x[N];
      float w[N];
      unpack(out_raw[step], grad);
      unpack(sum_raw[step], x);
      load_floats(a.weight + column(step), w);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float normal = fmaf(x[i], rstd, shift);
        const float weighted = grad[i] * w[i];
        grad_weight[step][i] = fmaf(grad[i], normal, grad_weight[step][i]);
        grad_bias[step][i] += grad[i];
        first += weighted;
        second = fmaf(weighted, normal, second);
      }
    }
    const float share = __fdividef(1.0f, static_cast<float>(a.columns));
    first = add_warps<kWarps>(first, shared) * share;
    second = add_warps<kWarps>(second, shared + 32) * share;
    // rstd * (grad * weight - first - normal * second), with what is the same for the row apart.
    const float slope = -rstd * rstd * second;
    const float level = -rstd * fmaf(shift, second, first);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (!has(step)) continue;
      float grad[N];
      float x[N];
      float w[N];
      unpack(out_raw[step], grad);
      unpack(sum_raw[step], x);
      load_floats(a.weight + column(step), w);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        grad[i] = fmaf(grad[i] * w[i], rstd, fmaf(x[i], slope, level));
      }
      if (grad_sum != nullptr) {
        float more[N];
        unpack(more_raw[step], more);
#pragma unroll
        for (int i = 0; i < N; ++i) grad[i] += more[i];
      }
      store(static_cast<T*>(a.grad_x) + begin + column(step), pack<T>(grad));
      dropper.apply(begin + column(step), grad);
      if (a.grad_branch != nullptr) {
        store(static_cast<T*>(a.grad_branch) + begin + column(step), pack<T>(grad));
      }
      if constexpr (kBranchBias) {
#pragma unroll
        for (int i = 0; i < N; ++i) grad_branch_bias[step][i] += grad[i];
      }
    }
  }

  // Adds `sums` over the block's rows into `to`; `all` is shared memory for kRows rows.
  __device__ __forceinline__ void add_rows(const float (*sums)[N], float* all, float* to) {
    const int columns = static_cast<int>(a.columns);
    float* own = all + static_cast<int>(threadIdx.x) / kPerRow * columns;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (has(step)) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
          *reinterpret_cast<float4*>(own + column(step) + i) =
              make_float4(sums[step][i], sums[step][i + 1], sums[step][i + 2], sums[step][i + 3]);
        }
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) * 4; i < columns; i += kThreads * 4) {
      float4 sum = *reinterpret_cast<const float4*>(all + i);
#pragma unroll
      for (int row = 1; row < kRows; ++row) {
        const float4 more = *reinterpret_cast<const float4*>(all + row * columns + i);
        sum.x += more.x;
        sum.y += more.y;
        sum.z += more.z;
        sum.w += more.w;
      }
      __stwb(reinterpret_cast<float4*>(to + i), sum);
    }
    __syncthreads();
  }
};

// partial[gridDim.x][2 or 3][columns]: of weight, bias and the branch's bias.
template <typename T, int N, int kSteps, int kWarps, int kRows, bool kDrops, bool kBranchBias,
          int kBlocks>
__global__ __launch_bounds__(32 * kWarps * kRows,
                             kBlocks) void norm_backward_rows(LockstepNormBackward a,
                                                              float* partial) {
  __shared__ float shared[64];
  extern __shared__ __align__(16) float columns[];
  NormBackward<T, N, kSteps, kWarps, kRows, kDrops, kBranchBias> norm{a, shared};
  norm.begin();
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kRows;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / (kWarps * 32);
       row < a.rows; row += stride) {
    norm.row(row);
    if constexpr (kWarps > 1) __syncthreads();
  }
  constexpr int kSums = kBranchBias ? 3 : 2;
  float* own = partial + static_cast<int64_t>(blockIdx.x) * kSums * a.columns;
  norm.add_rows(norm.grad_weight, columns, own);
  norm.add_rows(norm.grad_bias, columns, own + a.columns);
  if constexpr (kBranchBias) norm.add_rows(norm.grad_branch_bias, columns, own + 2 * a.columns);
}

}  // namespace lockstep::cuda

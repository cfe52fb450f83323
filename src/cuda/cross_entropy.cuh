#pragma once

#include "cuda/vectors.cuh"
#include "device/plugin_kernels.h"

namespace lockstep::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.69314718055994531f;

__device__ __forceinline__ float exp2_of(float exponent) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}

template <int N>
__device__ __forceinline__ float largest_of(const Raw<float, N>& raw) {
  float values[N];
  unpack(raw, values);
  float largest = values[0];
#pragma unroll
  for (int i = 1; i < N; ++i) largest = fmaxf(largest, values[i]);
  return largest;
}
__device__ __forceinline__ float largest_of(const Raw<bfloat16, 1>& raw) {
  return __bfloat162float(raw.bits);
}
__device__ __forceinline__ float largest_of(const Raw<bfloat16, 8>& raw) {
  const auto pair = [](uint32_t bits) { return *reinterpret_cast<__nv_bfloat162*>(&bits); };
  const __nv_bfloat162 most = __hmax2(__hmax2(pair(raw.bits.x), pair(raw.bits.y)),
                                      __hmax2(pair(raw.bits.z), pair(raw.bits.w)));
  return fmaxf(__low2float(most), __high2float(most));
}

// The sum of 2^(x * log2 e - most) over some elements, with the largest exponent met. What is not
// finite reaches the sum: NaN and infinity are in the exponents, whatever the comparisons make of
// them.
struct LogSum {
  float most = -1e30f;  // finite, so that no difference is NaN
  float sum = 0;

  __device__ __forceinline__ void raise(float exponent) {
    if (exponent > most) {
      sum *= exp2_of(most - exponent);
      most = exponent;
    }
  }

  template <typename T, int N>
  __device__ __forceinline__ void add(const Raw<T, N>& raw) {
    raise(largest_of(raw) * kLog2e);
    float values[N];
    unpack(raw, values);
    float here = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) here += exp2_of(fmaf(values[i], kLog2e, -most));
    sum += here;
  }

  __device__ __forceinline__ void add(const LogSum& other) {
    raise(other.most);
    sum += other.sum * exp2_of(other.most - most);
  }

  __device__ __forceinline__ void add_lanes() {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      LogSum other;
      other.most = __shfl_down_sync(0xffffffffu, most, distance);
      other.sum = __shfl_down_sync(0xffffffffu, sum, distance);
      add(other);
    }
  }
};

// Everything that is the same for all elements of a row.
struct RowOfLogits {
  int label;     // -1: none of the classes
  int classes;   // 0 for a row that does not count
  float most;    // of LogSum
  float factor;  // scale / sum
  float scale;

  // N logits from `column` on become their gradients.
  template <typename T, int N>
  __device__ __forceinline__ Raw<T, N> gradient(const Raw<T, N>& raw, int column) const {
    float values[N];
    unpack(raw, values);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = exp2_of(fmaf(values[i], kLog2e, -most)) * factor;
    // Few vectors have the label, or columns beyond the last class.
    if (column + N > classes || (label >= column && label < column + N)) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        values[i] = column + i >= classes ? 0.0f
                    : column + i == label ? values[i] - scale
                                          : values[i];
      }
    }
    return pack<T>(values);
  }
};

// The difference of the large terms is rounded once.
__device__ __forceinline__ float loss_of(float logit, const LogSum& all) {
  return (fmaf(-logit, kLog2e, all.most) + __log2f(all.sum)) * kLn2;
}

template <typename T>
__device__ __forceinline__ float logit_at(const T* logits, int column) {
  return column < 0 ? NAN : static_cast<float>(logits[column]);
}

// One block per row. The row is read twice; the second time it comes from the second-level cache,
// since all rows that are worked on at once fit into it. N divides the stride.
template <typename T, int N, int kThreads, int kSteps, int kBlocks>
__global__ __launch_bounds__(kThreads, kBlocks) void cross_entropy_rows(LockstepCrossEntropy a,
                                                                        const float* number) {
  constexpr int kWarps = kThreads / 32;
  constexpr int kGroup = kThreads * N;
  __shared__ LogSum sums[kWarps];
  __shared__ LogSum total;
  const int64_t row = blockIdx.x;
  auto* logits = static_cast<T*>(a.logits) + row * a.stride;
  const int classes = static_cast<int>(a.classes);
  const int stride = static_cast<int>(a.stride);
  const bool counts = a.labels[row] != a.ignored;
  const int label = a.labels[row] >= 0 && a.labels[row] < classes ? a.labels[row] : -1;
  if (counts) {
    LogSum sum;
    const int whole = classes / N * N;
    int at = threadIdx.x * N;
    for (; at + (kSteps - 1) * kGroup < whole; at += kSteps * kGroup) {
      Raw<T, N> raw[kSteps];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) raw[step] = load<N>(logits + at + step * kGroup);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) sum.add(raw[step]);
    }
    for (; at < whole; at += kGroup) sum.add(load<N>(logits + at));
    if (whole + static_cast<int>(threadIdx.x) < classes) {
      sum.add(load<1>(logits + whole + threadIdx.x));
    }
    sum.add_lanes();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
      LogSum all;
      if (threadIdx.x < kWarps) all = sums[threadIdx.x];
      all.add_lanes();
      if (threadIdx.x == 0) {
        total = all;
        a.losses[row] = loss_of(logit_at(logits, label), all);
      }
    }
    __syncthreads();
  } else if (threadIdx.x == 0) {
    a.losses[row] = 0;
  }
  if (!a.gradient) return;
  const float scale = (a.scale == nullptr ? 1.0f : *a.scale) / *number;
  const RowOfLogits what{.label = label,
                         .classes = counts ? classes : 0,
                         .most = counts ? total.most : 0.0f,
                         .factor = counts ? __fdividef(scale, total.sum) : 0.0f,
                         .scale = scale};
  // Backwards: what was read last is nearest.
  int at = ((stride - 1) / kGroup * kThreads + threadIdx.x) * N;
  if (at >= stride) at -= kGroup;
#pragma unroll 2
  for (; at >= 0; at -= kGroup) {
    store<Use::Once>(logits + at, what.gradient(load<N, Use::Once>(logits + at), at));
  }
}

}  // namespace lockstep::cuda

#pragma once

#include "cuda/column_tile.cuh"
#include "device/plugin_kernels.h"

namespace lockstep::cuda {

// x and the value and slope of GELU there.
struct Gelu {
  float value;
  float slope;
};

// Normal distribution function by erfc(z) = polynomial(t) * exp(-z^2), Abramowitz and Stegun
// 7.1.26: the error is below 1e-7 everywhere, and exp(-x^2 / 2) is what the slope needs anyway.
__device__ __forceinline__ Gelu gelu_erf_fast(float x) {
  const float z = fabsf(x) * 0.70710678118654752f;
  const float density = exp2f(-0.72134752044448170f * x * x);  // exp(-x^2 / 2)
  const float t = __fdividef(1.0f, fmaf(0.3275911f, z, 1.0f));
  float tail = fmaf(1.061405429f, t, -1.453152027f);
  tail = fmaf(tail, t, 1.421413741f);
  tail = fmaf(tail, t, -0.284496736f);
  tail = fmaf(tail, t, 0.254829592f);
  tail *= 0.5f * t * density;  // below -|x|
  const float below = x < 0 ? tail : 1.0f - tail;
  return {x * below, fmaf(x * 0.39894228040143268f, density, below)};
}

__device__ __forceinline__ Gelu gelu_erf(float x) {
  const float below = 0.5f * erfcf(-x * 0.70710678118654752f);
  const float density = 0.39894228040143268f * expf(-0.5f * x * x);
  return {x * below, fmaf(x, density, below)};
}

template <bool kFast>
__device__ __forceinline__ Gelu gelu_tanh(float x) {
  constexpr float kScale = 0.79788456080286536f;  // sqrt(2 / pi)
  constexpr float kCubic = 0.044715f;
  const float square = x * x;
  const float inner = kScale * x * fmaf(kCubic, square, 1.0f);
  float tangent;
  if constexpr (kFast) {
    // 1 - 2 / (exp(2 inner) + 1): right to 1e-7, without the branches of tanhf.
    tangent = 1.0f - __fdividef(2.0f, exp2f(2.8853900817779268f * inner) + 1.0f);
  } else {
    tangent = tanhf(inner);
  }
  const float half = 0.5f * (1.0f + tangent);
  const float steep =
      0.5f * x * (1.0f - tangent * tangent) * kScale * fmaf(3.0f * kCubic, square, 1.0f);
  return {x * half, half + steep};
}

template <typename T, int kForm>
__device__ __forceinline__ Gelu gelu_of(float x) {
  constexpr bool kFast = sizeof(T) == 2;
  if constexpr (kForm == LOCKSTEP_GELU_TANH) {
    return gelu_tanh<kFast>(x);
  } else if constexpr (kFast) {
    return gelu_erf_fast(x);
  } else {
    return gelu_erf(x);
  }
}

template <typename T, int N, int kForm, int kSteps>
__global__ __launch_bounds__(256) void gelu_forward_elements(const T* x, T* out, int64_t count) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * 256 * kSteps * N;
  Raw<T, N> raw[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int64_t at = begin + (step * 256 + threadIdx.x) * N;
    if (at < count) raw[step] = load<N, Use::Once>(x + at);
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int64_t at = begin + (step * 256 + threadIdx.x) * N;
    if (at < count) {
      float values[N];
      unpack(raw[step], values);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = gelu_of<T, kForm>(values[i]).value;
      store(out + at, pack<T>(values));
    }
  }
}

// kSteps rows of each thread are in flight. partial[gridDim.y][columns], or null.
template <typename T, int N, int kForm, int kSteps, int kBlocks>
__global__ __launch_bounds__(kTileThreads, kBlocks) void gelu_backward_tiles(LockstepGeluBackward a,
                                                                             int vectors,
                                                                             float* partial) {
  __shared__ float shared[kTileThreads * N];
  const ColumnTile<N> tile(vectors, a.columns);
  const auto* x = static_cast<const T*>(a.x) + tile.column;
  const auto* grad_out = static_cast<const T*>(a.grad_out) + tile.column;
  auto* grad_x = static_cast<T*>(a.grad_x) + tile.column;
  float sums[N] = {};
  const int64_t stride = static_cast<int64_t>(gridDim.y) * tile.rows * kSteps;
  int64_t first = static_cast<int64_t>(blockIdx.y) * tile.rows * kSteps + tile.row;
  for (; tile.has && first < a.rows; first += stride) {
    Raw<T, N> x_raw[kSteps];
    Raw<T, N> grad_raw[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t row = first + step * tile.rows;
      if (row < a.rows) {
        x_raw[step] = load<N, Use::Once>(x + row * a.columns);
        grad_raw[step] = load<N, Use::Once>(grad_out + row * a.columns);
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t row = first + step * tile.rows;
      if (row < a.rows) {
        float at[N];
        float grad[N];
        unpack(x_raw[step], at);
        unpack(grad_raw[step], grad);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          grad[i] *= gelu_of<T, kForm>(at[i]).slope;
          sums[i] += grad[i];
        }
        store(grad_x + row * a.columns, pack<T>(grad));
      }
    }
  }
  if (partial != nullptr) {
    tile.add_rows(sums, shared, partial + blockIdx.y * a.columns, vectors);
  }
}

}  // namespace lockstep::cuda

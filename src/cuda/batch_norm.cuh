#pragma once

#include "cuda/column_tile.cuh"
#include "device/plugin_kernels.h"

namespace lockstep::cuda {

inline constexpr int kNormSteps = 4;  // rows of each thread in flight

// Walks over the rows of a thread's columns, kNormSteps at a time: `fetch` is called for each, then
// `work` for each. The second kernel of a pass walks backwards: what the first one has read last
// is still in the cache.
template <bool kBackwards, int N, typename Fetch, typename Work>
__device__ __forceinline__ void walk_rows(const ColumnTile<N>& tile, int64_t rows, Fetch fetch,
                                          Work work) {
  if (!tile.has) return;
  const int64_t stride = static_cast<int64_t>(gridDim.y) * tile.rows * kNormSteps;
  int64_t first = static_cast<int64_t>(blockIdx.y) * tile.rows * kNormSteps + tile.row;
  for (; first < rows; first += stride) {
#pragma unroll
    for (int step = 0; step < kNormSteps; ++step) {
      const int64_t row = first + step * tile.rows;
      if (row < rows) fetch(step, kBackwards ? rows - 1 - row : row);
    }
#pragma unroll
    for (int step = 0; step < kNormSteps; ++step) {
      const int64_t row = first + step * tile.rows;
      if (row < rows) work(step, kBackwards ? rows - 1 - row : row);
    }
  }
}

// partial[gridDim.y][2][channels]: the sums of x - pivot and of its square; the pivot is the
// channel's first element, so that little is lost where the mean is far from 0.
template <typename T, int N>
__global__ __launch_bounds__(kTileThreads) void batch_norm_sums(LockstepBatchNormForward a,
                                                                int vectors, float* partial) {
  __shared__ float shared[kTileThreads * N];
  const ColumnTile<N> tile(vectors, a.channels);
  const auto* x = static_cast<const T*>(a.x) + tile.column;
  float pivot[N] = {};
  float sums[N] = {};
  float squares[N] = {};
  if (tile.has) unpack(load<N>(x), pivot);
  Raw<T, N> raw[kNormSteps];
  walk_rows<false>(
      tile, a.rows, [&](int step, int64_t row) { raw[step] = load<N>(x + row * a.channels); },
      [&](int step, int64_t) {
        float values[N];
        unpack(raw[step], values);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float away = values[i] - pivot[i];
          sums[i] += away;
          squares[i] += away * away;
        }
      });
  float* own = partial + blockIdx.y * 2 * a.channels;
  tile.add_rows(sums, shared, own, vectors);
  tile.add_rows(squares, shared, own + a.channels, vectors);
}

// 32 channels per block; its 16 warps share the partial sums.
inline constexpr int kFinishThreads = 512;

struct TwoSums {
  double first = 0;
  double second = 0;
  bool is_mine = false;  // this thread has the sums of its channel
};

__device__ __forceinline__ TwoSums two_sums(const float* partial, int parts, int64_t channels) {
  constexpr int kWarps = kFinishThreads / 32;
  __shared__ double shared[2][kWarps][32];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  TwoSums sums;
  if (channel < channels) {
#pragma unroll 8
    for (int part = warp; part < parts; part += kWarps) {
      sums.first += partial[part * 2 * channels + channel];
      sums.second += partial[(part * 2 + 1) * channels + channel];
    }
  }
  shared[0][warp][lane] = sums.first;
  shared[1][warp][lane] = sums.second;
  __syncthreads();
  if (warp == 0 && channel < channels) {
    sums = {.is_mine = true};
    for (int i = 0; i < kWarps; ++i) {
      sums.first += shared[0][i][lane];
      sums.second += shared[1][i][lane];
    }
  }
  return sums;
}

template <typename T>
__global__ __launch_bounds__(kFinishThreads) void batch_norm_finish(LockstepBatchNormForward a,
                                                                    const float* partial,
                                                                    int parts) {
  const TwoSums sums = two_sums(partial, parts, a.channels);
  if (!sums.is_mine) return;
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  float pivot[1];
  unpack(load<1>(static_cast<const T*>(a.x) + channel), pivot);
  const double rows = static_cast<double>(a.rows);
  const double away = sums.first / rows;
  const double mean = pivot[0] + away;
  const double variance = fmax(sums.second / rows - away * away, 0.0);
  a.mean[channel] = static_cast<float>(mean);
  a.rstd[channel] = static_cast<float>(1.0 / sqrt(variance + a.epsilon));
  if (a.running_mean != nullptr) {
    const double unbiased = variance * rows / fmax(rows - 1, 1.0);
    float& to_mean = a.running_mean[channel];
    float& to_var = a.running_var[channel];
    to_mean = static_cast<float>((1.0 - a.momentum) * to_mean + a.momentum * mean);
    to_var = static_cast<float>((1.0 - a.momentum) * to_var + a.momentum * unbiased);
  }
}

template <typename T, int N>
__global__ __launch_bounds__(kTileThreads) void batch_norm_apply(LockstepBatchNormForward a,
                                                                 int vectors) {
  const ColumnTile<N> tile(vectors, a.channels);
  if (!tile.has) return;
  const auto* x = static_cast<const T*>(a.x) + tile.column;
  const auto* residual = static_cast<const T*>(a.residual) + tile.column;
  auto* out = static_cast<T*>(a.out) + tile.column;
  float scale[N];
  float mean[N];
  float bias[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    scale[i] = a.rstd[tile.column + i] * a.weight[tile.column + i];
    mean[i] = a.mean[tile.column + i];
    bias[i] = a.bias[tile.column + i];
  }
  Raw<T, N> raw[kNormSteps];
  Raw<T, N> more[kNormSteps];
  walk_rows<true>(
      tile, a.rows,
      [&](int step, int64_t row) {
        raw[step] = load<N, Use::Once>(x + row * a.channels);
        if (a.residual != nullptr) more[step] = load<N, Use::Once>(residual + row * a.channels);
      },
      [&](int step, int64_t row) {
        float values[N];
        float added[N] = {};
        unpack(raw[step], values);
        if (a.residual != nullptr) unpack(more[step], added);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          values[i] = fmaf(values[i] - mean[i], scale[i], bias[i]) + added[i];
          // A NaN stays one, as in torch.
          if (a.relu) values[i] = values[i] < 0 ? 0.0f : values[i];
        }
        store(out + row * a.channels, pack<T>(values));
      });
}

// What reaches the sum that relu sees.
template <typename T, int N>
__device__ __forceinline__ void through_relu(const Raw<T, N>& grad_raw, const Raw<T, N>& out_raw,
                                             bool relu, float (&grad)[N]) {
  unpack(grad_raw, grad);
  if (relu) {
    float out[N];
    unpack(out_raw, out);
#pragma unroll
    for (int i = 0; i < N; ++i) grad[i] = out[i] <= 0 ? 0.0f : grad[i];
  }
}

// partial[gridDim.y][2][channels]: the sums of the gradient times the normalised value, and of the
// gradient.
template <typename T, int N>
__global__ __launch_bounds__(kTileThreads) void batch_norm_backward_sums(
    LockstepBatchNormBackward a, int vectors, float* partial) {
  __shared__ float shared[kTileThreads * N];
  const ColumnTile<N> tile(vectors, a.channels);
  const auto* x = static_cast<const T*>(a.x) + tile.column;
  const auto* out = static_cast<const T*>(a.out) + tile.column;
  const auto* grad_out = static_cast<const T*>(a.grad_out) + tile.column;
  float mean[N] = {};
  float rstd[N] = {};
  if (tile.has) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      mean[i] = a.mean[tile.column + i];
      rstd[i] = a.rstd[tile.column + i];
    }
  }
  float weight[N] = {};
  float bias[N] = {};
  Raw<T, N> x_raw[kNormSteps];
  Raw<T, N> out_raw[kNormSteps];
  Raw<T, N> grad_raw[kNormSteps];
  walk_rows<false>(
      tile, a.rows,
      [&](int step, int64_t row) {
        x_raw[step] = load<N>(x + row * a.channels);
        grad_raw[step] = load<N>(grad_out + row * a.channels);
        if (a.relu) out_raw[step] = load<N>(out + row * a.channels);
      },
      [&](int step, int64_t) {
        float values[N];
        float grad[N];
        unpack(x_raw[step], values);
        through_relu(grad_raw[step], out_raw[step], a.relu != 0, grad);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          weight[i] += grad[i] * ((values[i] - mean[i]) * rstd[i]);
          bias[i] += grad[i];
        }
      });
  float* own = partial + blockIdx.y * 2 * a.channels;
  tile.add_rows(weight, shared, own, vectors);
  tile.add_rows(bias, shared, own + a.channels, vectors);
}

// means[2][channels]: both sums over the rows, divided by their number.
__global__ __launch_bounds__(kFinishThreads) void batch_norm_backward_finish(
    LockstepBatchNormBackward a, const float* partial, int parts, float* means);

template <typename T, int N>
__global__ __launch_bounds__(kTileThreads) void batch_norm_backward_apply(
    LockstepBatchNormBackward a, int vectors, const float* means) {
  const ColumnTile<N> tile(vectors, a.channels);
  if (!tile.has) return;
  const auto* x = static_cast<const T*>(a.x) + tile.column;
  const auto* out = static_cast<const T*>(a.out) + tile.column;
  const auto* grad_out = static_cast<const T*>(a.grad_out) + tile.column;
  auto* grad_x = static_cast<T*>(a.grad_x) + tile.column;
  auto* grad_residual = static_cast<T*>(a.grad_residual) + tile.column;
  // grad_x = scale * (grad - bias mean - (x - mean) * rstd * weight mean), as grad * scale +
  // x * slope + shift.
  float scale[N];
  float slope[N];
  float shift[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int64_t channel = tile.column + i;
    scale[i] = a.rstd[channel] * a.weight[channel];
    slope[i] = -scale[i] * a.rstd[channel] * means[channel];
    shift[i] = -scale[i] * means[a.channels + channel] - slope[i] * a.mean[channel];
  }
  Raw<T, N> x_raw[kNormSteps];
  Raw<T, N> out_raw[kNormSteps];
  Raw<T, N> grad_raw[kNormSteps];
  walk_rows<true>(
      tile, a.rows,
      [&](int step, int64_t row) {
        x_raw[step] = load<N, Use::Once>(x + row * a.channels);
        grad_raw[step] = load<N, Use::Once>(grad_out + row * a.channels);
        if (a.relu) out_raw[step] = load<N, Use::Once>(out + row * a.channels);
      },
      [&](int step, int64_t row) {
        float values[N];
        float grad[N];
        unpack(x_raw[step], values);
        through_relu(grad_raw[step], out_raw[step], a.relu != 0, grad);
        if (a.grad_residual != nullptr) store(grad_residual + row * a.channels, pack<T>(grad));
#pragma unroll
        for (int i = 0; i < N; ++i) {
          values[i] = fmaf(grad[i], scale[i], fmaf(values[i], slope[i], shift[i]));
        }
        store(grad_x + row * a.channels, pack<T>(values));
      });
}

}  // namespace lockstep::cuda

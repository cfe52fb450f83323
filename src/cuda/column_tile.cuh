#pragma once

// How a block of a kernel that sums over rows sees its part of a matrix: a tile of columns, N in
// each thread, and as many rows at once as its threads have room for.

#include "cuda/vectors.cuh"

namespace lockstep::cuda {

inline constexpr int kTileThreads = 256;
inline constexpr int kTileVectors = 32;  // at most, from left to right

struct TileGrid {
  int vectors = 1;  // of a tile
  int rows = 1;     // that a block has at once
  dim3 blocks;      // x: tiles; y: parts of the rows
};

template <int N>
struct ColumnTile {
  int64_t column;
  int row;  // of the rows at once
  int rows;
  bool has;

  __device__ __forceinline__ ColumnTile(int vectors, int64_t columns) {
    rows = kTileThreads / vectors;
    row = threadIdx.x / vectors;
    column = (static_cast<int64_t>(blockIdx.x) * vectors + threadIdx.x % vectors) * N;
    has = row < rows && column < columns;
  }

  // Adds over the rows of the block, in their order, into to[columns]. `shared` has
  // kTileThreads * N floats.
  __device__ __forceinline__ void add_rows(const float (&sums)[N], float* shared, float* to,
                                           int vectors) const {
#pragma unroll
    for (int i = 0; i < N; ++i) shared[i * kTileThreads + threadIdx.x] = sums[i];
    __syncthreads();
    if (row == 0 && has) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        float sum = 0;
        for (int other = 0; other < rows; ++other) {
          sum += shared[i * kTileThreads + other * vectors + threadIdx.x];
        }
        to[column + i] = sum;
      }
    }
    __syncthreads();
  }
};

// About `blocks_wanted` blocks, at most kMaxParts parts.
inline constexpr int kMaxParts = 1024;
TileGrid tile_grid(int64_t rows, int64_t columns, int per_vector, int blocks_wanted);

}  // namespace lockstep::cuda

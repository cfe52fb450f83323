#include "cuda/column_sums.cuh"
#include "cuda/vectors.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kColumns = 8;  // of a block: what 32 bytes hold

// kParts threads share the partial sums of a column, and have all of their loads in flight at once
// where there are up to 16 for each.
template <int kParts>
__global__ __launch_bounds__(kColumns* kParts) void add_column_sums(ColumnSums a) {
  __shared__ float sums[kParts][kColumns];
  const int part = threadIdx.x / kColumns;
  const int own = threadIdx.x % kColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + own;
  const int64_t stride = a.columns * (a.stride == 0 ? a.sums : a.stride);
  const float* from = a.partial + blockIdx.y * a.columns + column;
  float sum = 0;
  if (column < a.columns) {
#pragma unroll 16
    for (int64_t i = part; i < a.num; i += kParts) {
      sum += from[i * stride];
    }
  }
  sums[part][own] = sum;
  __syncthreads();
#pragma unroll
  for (int half = kParts / 2; half > 0; half /= 2) {
    if (part < half) {
      sums[part][own] += sums[part + half][own];
    }
    __syncthreads();
  }
  if (part == 0 && column < a.columns) {
    float* to = (blockIdx.y == 0 ? a.to[0] : blockIdx.y == 1 ? a.to[1] : a.to[2]) + column;
    *to = a.accumulate ? *to + sums[0][own] : sums[0][own];
  }
}

}  // namespace

cudaError_t launch_column_sums(const ColumnSums& sums, cudaStream_t stream) {
  if (sums.columns > 0) {
    const dim3 grid(static_cast<unsigned>(ceil_div(sums.columns, kColumns)), sums.sums);
    if (sums.num > 64) {
      add_column_sums<128><<<grid, kColumns * 128, 0, stream>>>(sums);
    } else {
      add_column_sums<32><<<grid, kColumns * 32, 0, stream>>>(sums);
    }
  }
  return cudaPeekAtLastError();  // left there for a caller that looks only at its end
}

}  // namespace lockstep::cuda

#pragma once

#include "cuda/dropout.cuh"

namespace lockstep::cuda {

// N elements of a row of a table, in float32.
template <typename Table, int N>
__device__ __forceinline__ void add_table(const void* table, int64_t at, float (&to)[N]) {
  float values[N];
  if constexpr (std::is_same_v<Table, float>) {
    load_floats(static_cast<const float*>(table) + at, values);
  } else {
    unpack(load<N>(static_cast<const Table*>(table) + at), values);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] += values[i];
}

inline constexpr int kEmbeddingWarps = 8;

// A warp per row.
template <typename T, typename Table, int N, bool kDrops>
__global__ __launch_bounds__(32 * kEmbeddingWarps) void embedding_rows(LockstepEmbeddingForward a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kEmbeddingWarps + threadIdx.x / 32;
  if (row >= a.rows) return;
  const int64_t id = a.ids[row];
  const bool is_known = id >= 0 && id < a.vocabulary;
  const int64_t token = (is_known ? id : 0) * a.columns;
  const int64_t position = row % a.period * a.columns;
  const int64_t segment = a.segments == nullptr ? 0 : a.segment_ids[row] * a.columns;
  const Dropper<kDrops> dropper(a.dropout);
#pragma unroll 4
  for (int64_t column = threadIdx.x % 32 * N; column < a.columns; column += 32 * N) {
    float values[N] = {};
    add_table<Table>(a.tokens, token + column, values);
    if (a.positions != nullptr) add_table<Table>(a.positions, position + column, values);
    if (a.segments != nullptr) add_table<Table>(a.segments, segment + column, values);
    const int64_t at = row * a.columns + column;
    dropper.apply(at, values);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = is_known ? values[i] : NAN;
    store(static_cast<T*>(a.out) + at, pack<T>(values));
  }
}

// The rows are walked in the order of their ids, kSorted of them by each block. A run of one id
// that begins and ends in a block goes straight into the table. A part of a longer run goes into
// partial[block][0] if the run began in an earlier block, into partial[block][1] if it begins
// here; embedding_long_runs adds those up.
inline constexpr int kEmbeddingThreads = 128;

template <typename T, int N, bool kDrops, int kSorted, int kAhead>
__global__ __launch_bounds__(kEmbeddingThreads) void embedding_runs(LockstepEmbeddingBackward a,
                                                                    float* partial) {
  __shared__ int ids[kSorted + 2];  // the id before and the id after, too; -1: there is none
  __shared__ int rows[kSorted];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSorted;
  const int count = static_cast<int>(a.rows - begin < kSorted ? a.rows - begin : kSorted);
  for (int i = threadIdx.x; i < kSorted + 2; i += kEmbeddingThreads) {
    const int64_t at = begin + i - 1;
    ids[i] = at >= 0 && at < a.rows ? a.sorted_ids[at] : -1;
  }
  for (int i = threadIdx.x; i < count; i += kEmbeddingThreads) rows[i] = a.order[begin + i];
  __syncthreads();
  float* const own = partial + blockIdx.x * 2 * a.columns;
  const Dropper<kDrops> dropper(a.dropout);
  for (int64_t column = threadIdx.x * N; column < a.columns; column += kEmbeddingThreads * N) {
    float sum[N] = {};
    bool from_before = ids[1] == ids[0];
    for (int first = 0; first < count; first += kAhead) {
      Raw<T, N> raw[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i < count) {
          raw[i] = load<N, Use::Once>(static_cast<const T*>(a.grad_out) +
                                      rows[first + i] * a.columns + column);
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i >= count) continue;
        float values[N];
        unpack(raw[i], values);
        dropper.apply(rows[first + i] * a.columns + column, values);
#pragma unroll
        for (int k = 0; k < N; ++k) sum[k] += values[k];
        const int id = ids[first + i + 1];
        const bool is_last = id != ids[first + i + 2];
        if (!is_last && first + i + 1 < count) continue;
        if (id < a.vocabulary) {
          const bool is_whole = is_last && !from_before;
          float* to =
              is_whole ? a.grad_table + id * a.columns : own + (from_before ? 0 : a.columns);
          put_floats(to + column, sum, is_whole);
        }
        from_before = false;
#pragma unroll
        for (int k = 0; k < N; ++k) sum[k] = 0;
      }
    }
  }
}

// The first block from `low` on whose first id is not `id`, at most `high`. A warp's search: each
// round asks 32 places at once.
template <int kSorted>
__device__ __forceinline__ int64_t end_of_run(const int32_t* ids, int id, int64_t low,
                                              int64_t high) {
  while (low < high) {
    const int64_t stride = (high - low + 31) / 32;
    const int64_t at = low + threadIdx.x % 32 * stride;
    const bool same = at < high && ids[at * kSorted] == id;
    const int num = __popc(__ballot_sync(0xffffffffu, same));
    if (num == 0) return low;
    const int64_t last = low + (num - 1) * stride;  // which is of the run
    high = last + stride < high ? last + stride : high;
    low = last + 1;
  }
  return low;
}

// A block for each block of embedding_runs: if a run begins there and goes on, it adds its parts.
// Each warp has the same 32 * N columns and every kLongWarps-th part.
inline constexpr int kLongWarps = 16;

template <int N, int kSorted>
__global__ __launch_bounds__(32 * kLongWarps) void embedding_long_runs(LockstepEmbeddingBackward a,
                                                                       const float* partial) {
  __shared__ float sums[kLongWarps][32 * N];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSorted;
  const int64_t next = begin + kSorted;
  if (next >= a.rows) return;
  const int id = a.sorted_ids[next];
  const bool goes_on = a.sorted_ids[next - 1] == id && id < a.vocabulary;
  const bool begins = begin == 0 || a.sorted_ids[begin] != id || a.sorted_ids[begin - 1] != id;
  if (!goes_on || !begins) return;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int64_t blocks = (a.rows + kSorted - 1) / kSorted;
  const int64_t end = end_of_run<kSorted>(a.sorted_ids, id, blockIdx.x + 1, blocks);
  for (int64_t first = 0; first < a.columns; first += 32 * N) {
    const int64_t column = first + lane * N;
    const bool has = column < a.columns;
    float sum[N] = {};
    if (has && warp == 0) load_floats(partial + (blockIdx.x * 2 + 1) * a.columns + column, sum);
#pragma unroll 8
    for (int64_t part = blockIdx.x + 1 + warp; has && part < end; part += kLongWarps) {
      float values[N];
      load_floats(partial + part * 2 * a.columns + column, values);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += values[k];
    }
#pragma unroll
    for (int k = 0; k < N; ++k) sums[warp][k * 32 + lane] = sum[k];
    __syncthreads();
    if (warp == 0 && has) {
      for (int other = 1; other < kLongWarps; ++other) {
#pragma unroll
        for (int k = 0; k < N; ++k) sum[k] += sums[other][k * 32 + lane];
      }
      put_floats(a.grad_table + id * a.columns + column, sum, /*accumulate=*/true);
    }
    __syncthreads();
  }
}

// grad_positions: a thread has N columns of one position.
template <typename T, int N, bool kDrops>
__global__ __launch_bounds__(256) void position_sums(LockstepPositionBackward a) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x) * N;
  const int64_t size = a.period * a.columns;
  if (at >= size) return;
  float sum[N] = {};
  const auto* from = static_cast<const T*>(a.grad_out);
  const int64_t end = a.rows * a.columns;
  const Dropper<kDrops> dropper(a.dropout);
#pragma unroll 8
  for (int64_t i = at; i < end; i += size) {
    float values[N];
    unpack(load<N, Use::Once>(from + i), values);
    dropper.apply(i, values);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] += values[k];
  }
  put_floats(a.grad_positions + at, sum, a.accumulate != 0);
}

}  // namespace lockstep::cuda

#include "cuda/embedding_sort.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kSortWarps = kSortThreads / 32;
constexpr int kRounds = kSortItems / kSortThreads;  // of 32 items for each warp
constexpr int kScanThreads = 1024;

struct SortPass {
  const int64_t* ids = nullptr;  // of the first pass; then null
  const int* keys = nullptr;
  const int* rows = nullptr;
  int* to_keys = nullptr;
  int* to_rows = nullptr;
  int* counts = nullptr;  // [kDigits][blocks]; after the scan: where the items of a block go
  int64_t num = 0;
  int64_t vocabulary = 0;
  int shift = 0;
};

__device__ __forceinline__ int key_at(const SortPass& pass, int64_t i) {
  if (pass.ids == nullptr) return pass.keys[i];
  const int64_t id = pass.ids[i];
  return static_cast<int>(id >= 0 && id < pass.vocabulary ? id : pass.vocabulary);
}

// The items of a warp are neighbours, so that warps and lanes have the order of the items.
__device__ __forceinline__ int64_t item_at(int round) {
  return static_cast<int64_t>(blockIdx.x) * kSortItems + threadIdx.x / 32 * (32 * kRounds) +
         round * 32 + threadIdx.x % 32;
}

__global__ __launch_bounds__(kSortThreads) void sort_count(SortPass pass) {
  __shared__ int counts[kDigits];
  counts[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = item_at(round);
    if (i < pass.num) atomicAdd(&counts[key_at(pass, i) >> pass.shift & (kDigits - 1)], 1);
  }
  __syncthreads();
  pass.counts[threadIdx.x * gridDim.x + blockIdx.x] = counts[threadIdx.x];
}

// One block: every count becomes the sum of those before it.
__global__ __launch_bounds__(kScanThreads) void sort_scan(int* counts, int num) {
  __shared__ int warps[kScanThreads / 32];
  __shared__ int carry;
  if (threadIdx.x == 0) carry = 0;
  __syncthreads();
  constexpr int kEach = 8;
  for (int first = 0; first < num; first += kScanThreads * kEach) {
    const int begin = first + threadIdx.x * kEach;
    int own[kEach];
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      own[i] = begin + i < num ? counts[begin + i] : 0;
      sum += own[i];
    }
    int before = sum;  // of this warp's lanes up to this one
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, before, distance);
      if (threadIdx.x % 32 >= distance) before += other;
    }
    if (threadIdx.x % 32 == 31) warps[threadIdx.x / 32] = before;
    __syncthreads();
    int base = carry;
    for (int warp = 0; warp < static_cast<int>(threadIdx.x / 32); ++warp) base += warps[warp];
    int at = base + before - sum;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (begin + i < num) counts[begin + i] = at;
      at += own[i];
    }
    __syncthreads();
    if (threadIdx.x == kScanThreads - 1) carry = at;
    __syncthreads();
  }
}

__global__ __launch_bounds__(kSortThreads) void sort_move(SortPass pass) {
  __shared__ int next[kSortWarps][kDigits];  // where a warp's next item of a digit goes
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < kSortWarps; ++i) next[i][threadIdx.x] = 0;
  __syncthreads();
  int keys[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = item_at(round);
    keys[round] = i < pass.num ? key_at(pass, i) : 0;
    if (i < pass.num) atomicAdd(&next[warp][keys[round] >> pass.shift & (kDigits - 1)], 1);
  }
  __syncthreads();
  int at = pass.counts[threadIdx.x * gridDim.x + blockIdx.x];
  for (int i = 0; i < kSortWarps; ++i) {
    const int own = next[i][threadIdx.x];
    next[i][threadIdx.x] = at;
    at += own;
  }
  __syncthreads();
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = item_at(round);
    const bool has = i < pass.num;
    const int digit = has ? keys[round] >> pass.shift & (kDigits - 1) : kDigits;
    const unsigned alike = __match_any_sync(0xffffffffu, digit);
    if (has) {
      const int to = next[warp][digit] + __popc(alike & ((1u << lane) - 1));
      pass.to_keys[to] = keys[round];
      pass.to_rows[to] = pass.rows == nullptr ? static_cast<int>(i) : pass.rows[i];
    }
    __syncwarp();
    if (has && lane == 31 - __clz(alike)) next[warp][digit] += __popc(alike);
    __syncwarp();
  }
}

}  // namespace

size_t embedding_sort_scratch(int64_t rows) {
  const int64_t blocks = ceil_div(rows, kSortItems);
  return static_cast<size_t>(2 * rows + blocks * kDigits) * sizeof(int);
}

cudaError_t launch_embedding_sort(const LockstepEmbeddingSort& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  auto* other_keys = static_cast<int*>(a.scratch);
  int* other_rows = other_keys + a.rows;
  const auto blocks = static_cast<unsigned>(ceil_div(a.rows, kSortItems));
  int passes = 1;
  while (passes < 4 && a.vocabulary >> (8 * passes) != 0) ++passes;
  SortPass pass;
  pass.ids = a.ids;
  pass.counts = other_rows + a.rows;
  pass.num = a.rows;
  pass.vocabulary = a.vocabulary;
  for (int i = 0; i < passes; ++i) {
    const bool to_result = (passes - 1 - i) % 2 == 0;
    pass.to_keys = to_result ? a.sorted_ids : other_keys;
    pass.to_rows = to_result ? a.order : other_rows;
    pass.shift = 8 * i;
    sort_count<<<blocks, kSortThreads, 0, stream>>>(pass);
    sort_scan<<<1, kScanThreads, 0, stream>>>(pass.counts, static_cast<int>(blocks) * kDigits);
    sort_move<<<blocks, kSortThreads, 0, stream>>>(pass);
    pass.ids = nullptr;
    pass.keys = pass.to_keys;
    pass.rows = pass.to_rows;
  }
  return cudaGetLastError();
}

}  // namespace lockstep::cuda

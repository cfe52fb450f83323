#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/sum_of_squares.h"

// Two kernels. The first walks over many arrays at once, as lists in its arguments: each block adds
// what it meets into one partial sum. The second adds the partial sums. Which thread adds which
// elements depends on the sizes alone, so the bits are the same every time.

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kListed = 96;  // arrays per launch: as many as fit into a kernel's arguments

struct List {
  const void* data[kListed];
  int64_t counts[kListed];
  int32_t types[kListed];
  int32_t num;
};

__device__ double add_threads(double value) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    __syncthreads();
  }
  return sums[0];
}

__device__ float as_float(float value) {
  return value;
}
__device__ float as_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ float as_float(__half value) {
  return __half2float(value);
}

constexpr int kAhead = 4;  // groups of 16 bytes that a thread has in flight

// The squares of the elements from `first` on, as many as are in 16 bytes. An array that is not
// aligned is read one by one, but added in the same order.
template <typename Element>
__device__ uint4 load_group(const Element* elements, int64_t first, int64_t count, bool aligned) {
  constexpr int kEach = 16 / sizeof(Element);
  uint4 bits = {};
  if (aligned && first + kEach <= count) {
    bits = __ldcs(reinterpret_cast<const uint4*>(elements + first));
  } else {
    auto* values = reinterpret_cast<Element*>(&bits);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (first + i < count) {
        values[i] = elements[first + i];
      }
    }
  }
  return bits;
}

// The chunks `first`, `first` + gridDim.x and so on of an array.
template <typename Element>
__device__ double squares_of(const void* data, int64_t count, int64_t first) {
  constexpr int kEach = 16 / sizeof(Element);
  constexpr int64_t kChunk = kThreads * kAhead * kEach;
  const auto* elements = static_cast<const Element*>(data);
  const bool aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  double sum = 0;
  for (int64_t chunk = first; chunk * kChunk < count; chunk += gridDim.x) {
    const int64_t begin = chunk * kChunk + threadIdx.x * kEach;
    uint4 groups[kAhead];
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      groups[ahead] = load_group(elements, begin + ahead * kThreads * kEach, count, aligned);
    }
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      const auto* values = reinterpret_cast<const Element*>(&groups[ahead]);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const double value = as_float(values[i]);
        sum += value * value;
      }
    }
  }
  return sum;
}

// Chunks have 16 KiB, whatever the type.
__device__ int64_t num_chunks(int64_t count, int element_bytes) {
  const int64_t chunk = kThreads * kAhead * 16 / element_bytes;
  return (count + chunk - 1) / chunk;
}

__global__ void partial_squares(List list, double* partial, bool is_first) {
  double sum = 0;
  int64_t before = 0;  // chunks of the arrays before this one: the blocks take turns over all
  for (int array = 0; array < list.num; ++array) {
    const void* data = list.data[array];
    const int64_t count = list.counts[array];
    const int64_t first = (gridDim.x + blockIdx.x - before % gridDim.x) % gridDim.x;
    switch (list.types[array]) {
      case 0:
        sum += squares_of<float>(data, count, first);
        before += num_chunks(count, 4);
        break;
      case 1:
        sum += squares_of<__nv_bfloat16>(data, count, first);
        before += num_chunks(count, 2);
        break;
      default:
        sum += squares_of<__half>(data, count, first);
        before += num_chunks(count, 2);
    }
  }
  sum = add_threads(sum);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = is_first ? sum : partial[blockIdx.x] + sum;
  }
}

__global__ void total_squares(const double* partial, double* out) {
  double sum = 0;
  for (int i = threadIdx.x; i < kSquaresBlocks; i += kThreads) {
    sum += partial[i];
  }
  sum = add_threads(sum);
  if (threadIdx.x == 0) {
    out[0] = sum;
  }
}

}  // namespace

cudaError_t launch_sum_of_squares(const Arrays& arrays, double* out, void* scratch,
                                  cudaStream_t stream) {
  auto* partial = static_cast<double*>(scratch);
  for (int first = 0; first == 0 || first < arrays.num; first += kListed) {
    List list{};
    list.num = std::min(kListed, arrays.num - first);
    for (int i = 0; i < list.num; ++i) {
      list.data[i] = arrays.data[first + i];
      list.counts[i] = arrays.counts[first + i];
      list.types[i] = arrays.types[first + i];
    }
    partial_squares<<<kSquaresBlocks, kThreads, 0, stream>>>(list, partial, first == 0);
  }
  total_squares<<<1, kThreads, 0, stream>>>(partial, out);
  return cudaGetLastError();
}

}  // namespace lockstep::cuda

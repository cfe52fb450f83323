#include "cuda/sum_of_squares.h"

#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

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

__device__ float as_float(float value) { return value; }
__device__ float as_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ float as_float(__half value) { return __half2float(value); }

template <typename Element>
__device__ double squares_of(const void* data, int64_t count) {
  const auto* elements = static_cast<const Element*>(data);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  double sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    const double value = as_float(elements[i]);
    sum += value * value;
  }
  return sum;
}

__global__ void partial_squares(List list, double* partial, bool is_first) {
  double sum = 0;
  for (int array = 0; array < list.num; ++array) {
    const void* data = list.data[array];
    const int64_t count = list.counts[array];
    switch (list.types[array]) {
      case 0:
        sum += squares_of<float>(data, count);
        break;
      case 1:
        sum += squares_of<__nv_bfloat16>(data, count);
        break;
      default:
        sum += squares_of<__half>(data, count);
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

#pragma once

// Elements of an activation in registers, N at a time: N is 16 bytes' worth where rows allow it,
// and 1 where they do not.

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace lockstep::cuda {

using bfloat16 = __nv_bfloat16;

template <typename T>
inline constexpr int kWide = 16 / sizeof(T);

template <typename T, int N>
struct Raw;
template <>
struct Raw<float, 4> {
  uint4 bits;
};
template <>
struct Raw<bfloat16, 8> {
  uint4 bits;
};
template <>
struct Raw<float, 1> {
  float bits;
};
template <>
struct Raw<bfloat16, 1> {
  bfloat16 bits;
};
// Half as wide, for what goes beside 16 bytes of float32.
template <>
struct Raw<bfloat16, 4> {
  uint2 bits;
};

// How long memory that is touched should stay in the caches: Once is for what nobody reads again
// before it would be gone anyway.
enum class Use { Again, Once };

// The intrinsics keep an access in one piece, which the compiler does not promise of an assignment.
template <int N, Use use = Use::Again, typename T>
__device__ __forceinline__ Raw<T, N> load(const T* from) {
  using Bits = decltype(Raw<T, N>::bits);
  if constexpr (N == 1) {
    return {*from};
  } else if constexpr (use == Use::Once) {
    return {__ldcs(reinterpret_cast<const Bits*>(from))};
  } else {
    return {__ldca(reinterpret_cast<const Bits*>(from))};
  }
}

template <Use use = Use::Again, typename T, int N>
__device__ __forceinline__ void store(T* to, const Raw<T, N>& raw) {
  using Bits = decltype(Raw<T, N>::bits);
  if constexpr (N == 1) {
    *to = raw.bits;
  } else if constexpr (use == Use::Once) {
    __stcs(reinterpret_cast<Bits*>(to), raw.bits);
  } else {
    __stwb(reinterpret_cast<Bits*>(to), raw.bits);
  }
}

__device__ __forceinline__ float low(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
__device__ __forceinline__ uint32_t pair_of(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ void unpack(const Raw<float, 4>& raw, float (&to)[4]) {
  to[0] = __uint_as_float(raw.bits.x);
  to[1] = __uint_as_float(raw.bits.y);
  to[2] = __uint_as_float(raw.bits.z);
  to[3] = __uint_as_float(raw.bits.w);
}
__device__ __forceinline__ void unpack(const Raw<bfloat16, 8>& raw, float (&to)[8]) {
  const uint32_t pairs[4] = {raw.bits.x, raw.bits.y, raw.bits.z, raw.bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = low(pairs[i]);
    to[2 * i + 1] = high(pairs[i]);
  }
}
__device__ __forceinline__ void unpack(const Raw<bfloat16, 4>& raw, float (&to)[4]) {
  to[0] = low(raw.bits.x);
  to[1] = high(raw.bits.x);
  to[2] = low(raw.bits.y);
  to[3] = high(raw.bits.y);
}
__device__ __forceinline__ void unpack(const Raw<float, 1>& raw, float (&to)[1]) {
  to[0] = raw.bits;
}
__device__ __forceinline__ void unpack(const Raw<bfloat16, 1>& raw, float (&to)[1]) {
  to[0] = __bfloat162float(raw.bits);
}

template <typename T, int N>
__device__ __forceinline__ Raw<T, N> pack(const float (&from)[N]) {
  if constexpr (N == 1) {
    return {static_cast<T>(from[0])};
  } else if constexpr (sizeof(T) == 4) {
    return {make_uint4(__float_as_uint(from[0]), __float_as_uint(from[1]), __float_as_uint(from[2]),
                       __float_as_uint(from[3]))};
  } else if constexpr (N == 4) {
    return {make_uint2(pair_of(from[0], from[1]), pair_of(from[2], from[3]))};
  } else {
    return {make_uint4(pair_of(from[0], from[1]), pair_of(from[2], from[3]),
                       pair_of(from[4], from[5]), pair_of(from[6], from[7]))};
  }
}

// A parameter's float32 values for N columns.
template <int N>
__device__ __forceinline__ void load_floats(const float* from, float (&to)[N]) {
  if constexpr (N == 1) {
    to[0] = *from;
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 four = __ldca(reinterpret_cast<const float4*>(from + i));
      to[i] = four.x;
      to[i + 1] = four.y;
      to[i + 2] = four.z;
      to[i + 3] = four.w;
    }
  }
}

template <int N>
__device__ __forceinline__ void store_floats(float* to, const float (&from)[N]) {
  if constexpr (N == 1) {
    *to = from[0];
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      __stwb(reinterpret_cast<float4*>(to + i),
             make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]));
    }
  }
}

// to = values, or to += values.
template <int N>
__device__ __forceinline__ void put_floats(float* to, float (&values)[N], bool accumulate) {
  if (accumulate) {
    float before[N];
    load_floats(to, before);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] += before[i];
  }
  store_floats(to, values);
}

__device__ __forceinline__ float add_lanes(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// Adds over the warps of a block; every thread gets the sum, in the same order. `sums` is shared
// memory for a float per warp, free again after the next barrier.
template <int kWarps>
__device__ __forceinline__ float add_warps(float value, float* sums) {
  value = add_lanes(value);
  if constexpr (kWarps > 1) {
    if (threadIdx.x % 32 == 0) {
      sums[threadIdx.x / 32] = value;
    }
    __syncthreads();
    value = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      value += sums[warp];
    }
  }
  return value;
}

inline bool is_wide(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Of the current device; asked once for each device.
int num_multiprocessors();

// Blocks of a kernel that the device has room for at once.
template <typename Kernel>
int64_t resident_blocks(Kernel kernel, int threads, size_t shared_bytes) {
  int each = 0;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, shared_bytes) !=
      cudaSuccess) {
    cudaGetLastError();  // the launch reports what is wrong
  }
  return static_cast<int64_t>(each < 1 ? 1 : each) * num_multiprocessors();
}

}  // namespace lockstep::cuda

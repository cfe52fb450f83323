#pragma once

// Dropout by Philox4x32-10; plugin_kernels.h says which bits are whose.

#include "cuda/vectors.cuh"
#include "device/plugin_kernels.h"

namespace lockstep::cuda {

__device__ __forceinline__ uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = static_cast<uint64_t>(0xD2511F53u) * counter.x;
    const uint64_t b = static_cast<uint64_t>(0xCD9E8D57u) * counter.z;
    counter =
        make_uint4(static_cast<uint32_t>(b >> 32) ^ counter.y ^ key.x, static_cast<uint32_t>(b),
                   static_cast<uint32_t>(a >> 32) ^ counter.w ^ key.y, static_cast<uint32_t>(a));
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return counter;
}

// What a thread keeps of LockstepDropout while it works; nothing if there is no dropout.
template <bool kDrops>
struct Dropper {
  __device__ explicit Dropper(const LockstepDropout&) {}
  template <int N>
  __device__ __forceinline__ void apply(int64_t, float (&)[N]) const {}
};

template <>
struct Dropper<true> {
  uint2 key;
  uint2 offset;
  uint32_t site;
  uint32_t threshold;
  float scale;

  __device__ explicit Dropper(const LockstepDropout& dropout) {
    const uint64_t seed = dropout.state[0];
    const uint64_t at = dropout.state[1];
    key = make_uint2(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    offset = make_uint2(static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32));
    site = dropout.site;
    threshold = static_cast<uint32_t>(rintf(dropout.probability * 65536.0f));
    scale = __fdividef(65536.0f, static_cast<float>(65536 - static_cast<int>(threshold)));
  }

  // Elements first .. first + N of the tensor; first is a multiple of N, and N is 1, 4 or 8.
  template <int N>
  __device__ __forceinline__ void apply(int64_t first, float (&values)[N]) const {
    const uint4 bits =
        philox(make_uint4(static_cast<uint32_t>(first / 8), site, offset.x, offset.y), key);
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
    if constexpr (N == 8) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values[2 * i] = keep(words[i] & 0xffffu, values[2 * i]);
        values[2 * i + 1] = keep(words[i] >> 16, values[2 * i + 1]);
      }
    } else if constexpr (N == 4) {
      const bool is_upper = first % 8 != 0;
      const uint32_t a = is_upper ? bits.z : bits.x;
      const uint32_t b = is_upper ? bits.w : bits.y;
      values[0] = keep(a & 0xffffu, values[0]);
      values[1] = keep(a >> 16, values[1]);
      values[2] = keep(b & 0xffffu, values[2]);
      values[3] = keep(b >> 16, values[3]);
    } else {
      const int half = static_cast<int>(first % 8);
      const uint32_t pair = half < 4 ? (half < 2 ? bits.x : bits.y) : (half < 6 ? bits.z : bits.w);
      values[0] = keep(half % 2 != 0 ? pair >> 16 : pair & 0xffffu, values[0]);
    }
  }

 private:
  __device__ __forceinline__ float keep(uint32_t random, float value) const {
    return random < threshold ? 0.0f : value * scale;
  }
};

}  // namespace lockstep::cuda

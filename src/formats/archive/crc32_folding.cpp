// "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Gopal et al., Intel
// 2009), with 64 bytes in flight. What remains after the folding goes through the tables: no
// Barrett reduction.

#include <cstring>

#include "formats/archive/crc32_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace lockstep::formats::crc32_kernels {

namespace {

constexpr size_t kLaneBytes = 16;
constexpr size_t kNumLanes = 4;
constexpr size_t kBlockBytes = kLaneBytes * kNumLanes;

// The factor that carries a half of a lane over a distance in bits; the product of two reversed
// polynomials is one bit too short, hence the shift.
constexpr int64_t factor(uint64_t exponent) {
  return static_cast<int64_t>(uint64_t{power_of_x(exponent)} << 1);
}

constexpr int64_t kFarLow = factor(8 * kBlockBytes + 32);
constexpr int64_t kFarHigh = factor(8 * kBlockBytes - 32);
constexpr int64_t kNearLow = factor(8 * kLaneBytes + 32);
constexpr int64_t kNearHigh = factor(8 * kLaneBytes - 32);
static_assert(kFarLow == 0x154442bd4 && kFarHigh == 0x1c6e41596, "as in the paper");
static_assert(kNearLow == 0x1751997d0 && kNearHigh == 0x0ccaa009e, "as in the paper");

#define LOCKSTEP_FOLDING __attribute__((target("pclmul,sse4.1")))

LOCKSTEP_FOLDING inline __m128i load(const std::byte* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

LOCKSTEP_FOLDING inline __m128i fold(__m128i lane, __m128i factors, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(lane, factors, 0x00);
  const __m128i high = _mm_clmulepi64_si128(lane, factors, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

LOCKSTEP_FOLDING uint32_t folded(uint32_t state, std::span<const std::byte> bytes) {
  if (bytes.size() < kBlockBytes) {
    return by_tables(state, bytes);
  }
  __m128i lanes[kNumLanes];
  for (size_t i = 0; i < kNumLanes; ++i) {
    lanes[i] = load(bytes.data() + i * kLaneBytes);
  }
  lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(static_cast<int>(state)));
  const __m128i far = _mm_set_epi64x(kFarHigh, kFarLow);
  for (bytes = bytes.subspan(kBlockBytes); bytes.size() >= kBlockBytes;
       bytes = bytes.subspan(kBlockBytes)) {
    for (size_t i = 0; i < kNumLanes; ++i) {
      lanes[i] = fold(lanes[i], far, load(bytes.data() + i * kLaneBytes));
    }
  }
  const __m128i near = _mm_set_epi64x(kNearHigh, kNearLow);
  __m128i lane = lanes[0];
  for (size_t i = 1; i < kNumLanes; ++i) {
    lane = fold(lane, near, lanes[i]);
  }
  for (; bytes.size() >= kLaneBytes; bytes = bytes.subspan(kLaneBytes)) {
    lane = fold(lane, near, load(bytes.data()));
  }
  std::byte rest[kLaneBytes];
  std::memcpy(rest, &lane, sizeof rest);
  return by_tables(by_tables(0, rest), bytes);
}

}  // namespace

Kernel by_folding() {
  return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1") ? &folded : nullptr;
}

}  // namespace lockstep::formats::crc32_kernels

#else

lockstep::formats::crc32_kernels::Kernel lockstep::formats::crc32_kernels::by_folding() {
  return nullptr;
}

#endif

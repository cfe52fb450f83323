#pragma once

// Vectors of the instruction set that the including file is compiled for, and how elements get in
// and out of them. For kernels_body.h only.
//
// Everything is in an anonymous namespace, and no function of the standard library is called: the
// linker keeps one copy of an inline function, and if that were the one compiled for AVX-512 here,
// a lesser processor would die of an illegal instruction anywhere in the program.

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif

namespace lockstep::shm {
namespace {

#if defined(__AVX512F__)
constexpr size_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr size_t kVectorBytes = 32;
#else
constexpr size_t kVectorBytes = 16;
#endif

struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};

// GCC's vector types: element-wise operators, which become the instruction set's own.
template <typename T, size_t kBytes = kVectorBytes>
struct VectorType {
  typedef T Type __attribute__((vector_size(kBytes)));
};
template <typename T>
using Vector = typename VectorType<T>::Type;

using Floats = Vector<float>;
using Words = Vector<uint32_t>;
using SignedWords = Vector<int32_t>;
using HalfWords = VectorType<uint16_t, kVectorBytes / 2>::Type;  // as many as Floats

// What elements of type T are computed in.
template <typename T>
struct AccumulatorType {
  using Type = T;
};
template <>
struct AccumulatorType<Half> {
  using Type = float;
};
template <>
struct AccumulatorType<BFloat> {
  using Type = float;
};
template <typename T>
using Accumulator = typename AccumulatorType<T>::Type;

// ---- 16 bits to 32 and back ----

// extend and truncate (of words below 2^16) are what __builtin_convertvector should be: GCC 12
// makes many instructions of it. narrow rounds to nearest even; a NaN becomes quiet and keeps the
// top of its payload, in both directions, everywhere.

#if defined(__AVX512F__)

// The masked forms, because GCC 12 warns of its own headers in the others; the instructions are the
// same.
constexpr __mmask16 kAll = 0xFFFF;

inline Words extend(HalfWords bits) {
  return (Words)_mm512_maskz_cvtepu16_epi32(kAll, (__m256i)bits);
}
inline HalfWords truncate(Words bits) {
  return (HalfWords)_mm512_maskz_cvtepi32_epi16(kAll, (__m512i)bits);
}
inline Floats widen(HalfWords bits, Half) {
  return (Floats)_mm512_maskz_cvtph_ps(kAll, (__m256i)bits);
}
inline HalfWords narrow(Floats value, Half) {
  return (HalfWords)_mm512_maskz_cvtps_ph(kAll, (__m512)value,
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#elif defined(__AVX2__)

inline Words extend(HalfWords bits) {
  return (Words)_mm256_cvtepu16_epi32((__m128i)bits);
}
inline HalfWords truncate(Words bits) {
  const __m256i all = (__m256i)bits;
  return (HalfWords)_mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}
inline Floats widen(HalfWords bits, Half) {
  return (Floats)_mm256_cvtph_ps((__m128i)bits);
}
inline HalfWords narrow(Floats value, Half) {
  return (HalfWords)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#elif defined(__ARM_NEON)

inline Words extend(HalfWords bits) {
  return (Words)vmovl_u16((uint16x4_t)bits);
}
inline HalfWords truncate(Words bits) {
  return (HalfWords)vmovn_u32((uint32x4_t)bits);
}
inline Floats widen(HalfWords bits, Half) {
  return (Floats)vcvt_f32_f16((float16x4_t)bits);
}
inline HalfWords narrow(Floats value, Half) {
  return (HalfWords)vcvt_f16_f32((float32x4_t)value);
}

#else

inline Words extend(HalfWords bits) {
  __m128i low = _mm_setzero_si128();
  __builtin_memcpy(&low, &bits, sizeof(bits));
  return (Words)_mm_unpacklo_epi16(low, _mm_setzero_si128());
}
inline HalfWords truncate(Words bits) {
  // SSE2 packs signed words only, so the sign is that of the 16 bits.
  const __m128i words = _mm_srai_epi32(_mm_slli_epi32((__m128i)bits, 16), 16);
  const __m128i packed = _mm_packs_epi32(words, words);
  HalfWords low;
  __builtin_memcpy(&low, &packed, sizeof(low));
  return low;
}

inline Floats widen(HalfWords bits, Half) {
  const Words half = extend(bits);
  const Words sign = (half & 0x8000U) << 16;
  const SignedWords magnitude = (SignedWords)(half & 0x7FFFU);
  const Words shifted = (Words)magnitude << 13;
  const Words normal = shifted + (112U << 23);
  // Counted in units of 2^-24, not by arithmetic on float's subnormals: a thread may have set the
  // processor to flush those to zero.
  const Words subnormal = (Words)(__builtin_convertvector(magnitude, Floats) * 0x1p-24F);
  const Words infinite = shifted | 0x7F800000U;
  Words result = magnitude < 0x400 ? subnormal : normal;
  result = magnitude >= 0x7C00 ? infinite : result;
  result = magnitude > 0x7C00 ? (infinite | 0x400000U) : result;
  return (Floats)(result | sign);
}

inline HalfWords narrow(Floats value, Half) {
  const Words bits = (Words)value;
  const Words sign = (bits >> 16) & 0x8000U;
  const Words word = bits & 0x7FFFFFFFU;
  const SignedWords magnitude = (SignedWords)word;
  // The carry out of the mantissa is what the exponent needs, up to infinity.
  const Words normal = (word - (112U << 23) + 0xFFFU + ((word >> 13) & 1U)) >> 13;
  // The last place of 0.5F is 2^-24, that of half's subnormals: the addition rounds.
  const Words subnormal = (Words)((Floats)word + 0.5F) - 0x3F000000U;
  Words result = magnitude < 0x38800000 ? subnormal : normal;
  result = magnitude >= 0x47800000 ? Words{} + 0x7C00U : result;
  result = magnitude > 0x7F800000 ? (0x7E00U | ((word >> 13) & 0x3FFU)) : result;
  return truncate(result | sign);
}

#endif

inline Floats widen(HalfWords bits, BFloat) {
  return (Floats)(extend(bits) << 16);
}

// The nearest bfloat16, ties to even, in the upper half of each word (what is in the lower half has
// no meaning). NaN becomes 0x7FC0, as in c10::BFloat16.
inline Words rounded_to_bfloat(Floats value) {
  const Words bits = (Words)value;
  const Words rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
  return value != value ? Words{} + 0x7FC00000U : rounded;
}

inline HalfWords narrow(Floats value, BFloat) {
  return truncate(rounded_to_bfloat(value) >> 16);
}

// ---- loads and stores ----

// What one step of a kernel works on: one vector of accumulators, or more.
template <typename T, int kParts>
struct Block {
  Vector<T> part[kParts];
};

template <typename T>
void load(const T* from, Block<Accumulator<T>, 1>& to) {
  if constexpr (__is_same(T, Half) || __is_same(T, BFloat)) {
    HalfWords bits;
    __builtin_memcpy(&bits, from, sizeof(bits));
    to.part[0] = widen(bits, T{});
  } else {
    __builtin_memcpy(&to.part[0], from, sizeof(to.part[0]));
  }
}

template <typename T>
void store(const Block<Accumulator<T>, 1>& from, T* to) {
  if constexpr (__is_same(T, Half) || __is_same(T, BFloat)) {
    const HalfWords bits = narrow(from.part[0], T{});
    __builtin_memcpy(to, &bits, sizeof(bits));
  } else {
    __builtin_memcpy(to, &from.part[0], sizeof(from.part[0]));
  }
}

// bfloat16 by even and odd elements (of a little-endian machine): masks and shifts, where elements
// in their order would need shuffles, which are slower.
inline void load(const BFloat* from, Block<float, 2>& to) {
  Words bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  to.part[0] = (Floats)(bits << 16);
  to.part[1] = (Floats)(bits & 0xFFFF0000U);
}

inline void store(const Block<float, 2>& from, BFloat* to) {
  const Words even = rounded_to_bfloat(from.part[0]) >> 16;
  const Words odd = rounded_to_bfloat(from.part[1]) & 0xFFFF0000U;
  const Words bits = even | odd;
  __builtin_memcpy(to, &bits, sizeof(bits));
}

}  // namespace
}  // namespace lockstep::shm

#pragma once

// How crc32() is computed: by tables on any processor, by carry-less multiplication (PCLMULQDQ)
// where there is one. Both take and give the shift register itself, crc32() inverts it.

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::formats::crc32_kernels {

using Kernel = uint32_t (*)(uint32_t state, std::span<const std::byte> bytes);

uint32_t by_tables(uint32_t state, std::span<const std::byte> bytes);

// Null where the processor cannot.
Kernel by_folding();

// Polynomials modulo that of the CRC, bits reversed: the highest bit is the coefficient of x^0.
inline constexpr uint32_t kPolynomial = 0xedb88320;
inline constexpr uint32_t kOne = 0x80000000;

constexpr uint32_t times_x(uint32_t value) {
  return value >> 1 ^ ((value & 1) != 0 ? kPolynomial : 0);
}

constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (; a != 0; a <<= 1, b = times_x(b)) {
    product ^= (a & kOne) != 0 ? b : 0;
  }
  return product;
}

constexpr uint32_t power_of_x(uint64_t exponent) {
  uint32_t power = kOne;
  for (uint32_t square = kOne >> 1; exponent != 0; exponent >>= 1) {
    power = (exponent & 1) != 0 ? multiply(power, square) : power;
    square = multiply(square, square);
  }
  return power;
}

}  // namespace lockstep::formats::crc32_kernels

#include "formats/archive/crc32.h"

#include <algorithm>
#include <vector>

#include <libdeflate.h>

namespace lockstep::formats {

namespace {

constexpr size_t kBufferBytes = 1u << 20;

// Polynomials modulo that of the CRC, bits reversed: the highest bit is the coefficient of x^0.
constexpr uint32_t kPolynomial = 0xedb88320;
constexpr uint32_t kOne = 0x80000000;

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

}  // namespace

uint32_t crc32(uint32_t crc, std::span<const std::byte> bytes) {
  // For no buffer at all libdeflate gives the CRC that a first piece begins with.
  return bytes.empty() ? crc : libdeflate_crc32(crc, bytes.data(), bytes.size());
}

uint32_t crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b) {
  // A power of x repeats after 2^32 - 1, so that 8 * size_b cannot be too large.
  constexpr uint64_t kPeriod = 0xffffffff;
  return multiply(power_of_x(size_b % kPeriod * 8), crc_a) ^ crc_b;
}

uint32_t crc32_of(const base::ByteSource& source, uint64_t offset, uint64_t size) {
  std::vector<std::byte> buffer(std::min<uint64_t>(size, kBufferBytes));
  uint32_t crc = 0;
  for (uint64_t done = 0; done < size; done += buffer.size()) {
    buffer.resize(std::min<uint64_t>(size - done, kBufferBytes));
    source.read_at(offset + done, buffer);
    crc = crc32(crc, buffer);
  }
  return crc;
}

}  // namespace lockstep::formats

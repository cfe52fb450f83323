#include "formats/archive/crc32.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "formats/archive/crc32_kernels.h"

namespace lockstep::formats {

namespace {

using namespace crc32_kernels;

constexpr size_t kSlices = 8;
constexpr size_t kBufferBytes = 1u << 20;

using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

// tables[s][b]: what byte b does to the CRC when s more bytes follow it.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = times_x(crc);
    }
    tables[0][byte] = crc;
  }
  for (size_t slice = 1; slice < kSlices; ++slice) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t crc = tables[slice - 1][byte];
      tables[slice][byte] = crc >> 8 ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

uint32_t crc32_kernels::by_tables(uint32_t state, std::span<const std::byte> bytes) {
  static_assert(std::endian::native == std::endian::little);
  for (; bytes.size() >= kSlices; bytes = bytes.subspan(kSlices)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    word ^= state;
    state = 0;
    for (size_t i = 0; i < kSlices; ++i) {
      state ^= kTables[kSlices - 1 - i][word >> (8 * i) & 0xff];
    }
  }
  for (const std::byte byte : bytes) {
    state = state >> 8 ^ kTables[0][(state ^ static_cast<uint32_t>(byte)) & 0xff];
  }
  return state;
}

uint32_t crc32(uint32_t crc, std::span<const std::byte> bytes) {
  static const Kernel kernel = by_folding() != nullptr ? by_folding() : &by_tables;
  return ~kernel(~crc, bytes);
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

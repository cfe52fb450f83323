#include "formats/archive/crc32.h"

#include <random>
#include <string>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

std::string random_bytes(size_t size) {
  std::mt19937 random(42);
  std::string bytes(size, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(random());
  }
  return bytes;
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Crc32, IsThatOfZip) {
  EXPECT_EQ(formats::crc32(0, as_bytes("")), 0u);
  EXPECT_EQ(formats::crc32(0, as_bytes("123456789")), 0xcbf43926u);
  EXPECT_EQ(formats::crc32(0, as_bytes(std::string(1u << 20, '\xff'))), 0x956bac74u);
}

// Bit by bit, as the definition says.
uint32_t plain_crc32(std::string_view text) {
  uint32_t state = 0xffffffff;
  for (const char c : text) {
    state ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) {
      state = state >> 1 ^ ((state & 1) != 0 ? 0xedb88320u : 0u);
    }
  }
  return ~state;
}

TEST(Crc32, IsThatOfTheDefinitionAtEveryLengthAndAlignment) {
  const std::string text = random_bytes(300);
  for (size_t start = 0; start < 17; ++start) {
    for (size_t size = 0; size + start <= text.size(); ++size) {
      const std::string_view part = std::string_view(text).substr(start, size);
      ASSERT_EQ(formats::crc32(0, as_bytes(part)), plain_crc32(part))
          << size << " bytes from " << start;
    }
  }
}

TEST(Crc32, OfTwoPiecesIsThatOfTheWhole) {
  const std::string text = random_bytes(5000);
  const auto bytes = as_bytes(text);
  const uint32_t whole = formats::crc32(0, bytes);
  for (const size_t cut : {0, 1, 7, 8, 9, 64, 500, 4096, 4999, 5000}) {
    const auto a = bytes.first(cut);
    const auto b = bytes.subspan(cut);
    EXPECT_EQ(formats::crc32(formats::crc32(0, a), b), whole) << cut;
    EXPECT_EQ(formats::crc32_combine(formats::crc32(0, a), formats::crc32(0, b), b.size()), whole)
        << cut;
  }
}

// (a + b) + c and a + (b + c) agree where a is too long to be read.
TEST(Crc32, CombinesPiecesOfAnySize) {
  const uint32_t a = 0x12345678;
  const uint32_t b = 0x9abcdef0;
  const uint32_t c = 0x0fedcba9;
  for (const uint64_t size : {uint64_t{1}, uint64_t{1} << 29, uint64_t{1} << 32, uint64_t{1} << 61,
                              uint64_t{0xffffffff}, uint64_t{1} << 63}) {
    EXPECT_EQ(formats::crc32_combine(formats::crc32_combine(a, b, size), c, 17),
              formats::crc32_combine(a, formats::crc32_combine(b, c, 17), size + 17))
        << size;
  }
}

}  // namespace
}  // namespace lockstep

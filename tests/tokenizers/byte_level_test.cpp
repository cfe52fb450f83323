#include "tokenizers/byte_level.h"

#include <gtest/gtest.h>

namespace lockstep::test {
namespace {

TEST(ByteLevel, EveryByteHasALetterAndEveryLetterItsByte) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string& letter = tokenizers::byte_letters()[static_cast<size_t>(byte)];
    EXPECT_EQ(tokenizers::bytes_of_letters(letter), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(tokenizers::byte_letters()[' '], "\u0120");
  EXPECT_EQ(tokenizers::bytes_of_letters("\u0120a\u4e2d"), std::nullopt);
}

}  // namespace
}  // namespace lockstep::test

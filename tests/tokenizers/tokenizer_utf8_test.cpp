#include <gtest/gtest.h>

#include "tokenizers/byte_level.h"
#include "tokenizers/utf8.h"

namespace lockstep::test {
namespace {

TEST(Utf8, EveryMaximalIllFormedPartBecomesOneReplacement) {
  const std::string r = "\xef\xbf\xbd";
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {"abcdefgh\xc3\xa9", "abcdefgh\xc3\xa9"},
      {"\x80", r},
      {"a\xff\xfe"
       "b",
       "a" + r + r + "b"},
      {"\xc0\x80", r + r},                  // overlong
      {"\xe0\x80\x80", r + r + r},          // overlong
      {"\xf0\x8f\xbf\xbf", r + r + r + r},  // overlong
      {"\xed\xa0\x80", r + r + r},          // a surrogate
      {"\xf4\x90\x80\x80", r + r + r + r},  // beyond U+10FFFF
      {"\xf5\x80", r + r},
      {"\xe4\xb8"
       "a",
       r + "a"},  // cut short: one part
      {"\xf0\x9f\x98"
       "a",
       r + "a"},
      {"\xf0\x9f\x98", r},
      {"\xe2\x82\xe2\x82\xac", r + "\xe2\x82\xac"},
      {"\xc3\xc3\xa9", r + "\xc3\xa9"},
  };
  for (const auto& [bytes, expected] : cases) {
    EXPECT_EQ(tokenizers::replace_invalid_utf8(bytes), expected) << testing::PrintToString(bytes);
  }
}

TEST(Utf8, EveryCodePointIsWrittenAndReadBack) {
  for (char32_t point = 0; point < 0x110000; ++point) {
    if (point >= 0xD800 && point < 0xE000) {
      continue;
    }
    std::string text = "xyz";
    tokenizers::append_utf8(text, point);
    ASSERT_EQ(tokenizers::first_invalid_utf8(text), text.size()) << static_cast<uint32_t>(point);
    ASSERT_EQ(tokenizers::last_code_point(text), point);
    const char* at = text.data() + 3;
    ASSERT_EQ(tokenizers::next_code_point(at), point);
    ASSERT_EQ(at, text.data() + text.size());
    ASSERT_EQ(tokenizers::count_code_points(text), 4u);
  }
}

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

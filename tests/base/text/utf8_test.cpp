#include "base/text/utf8.h"

#include <gtest/gtest.h>

namespace lockstep {
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
    EXPECT_EQ(base::replace_invalid_utf8(bytes), expected) << testing::PrintToString(bytes);
  }
}

TEST(Utf8, EveryCodePointIsWrittenAndReadBack) {
  for (char32_t point = 0; point < 0x110000; ++point) {
    if (point >= 0xD800 && point < 0xE000) {
      continue;
    }
    std::string text = "xyz";
    base::append_utf8(text, point);
    ASSERT_EQ(base::first_invalid_utf8(text), text.size()) << static_cast<uint32_t>(point);
    ASSERT_EQ(base::last_code_point(text), point);
    const char* at = text.data() + 3;
    ASSERT_EQ(base::next_code_point(at), point);
    ASSERT_EQ(at, text.data() + text.size());
    ASSERT_EQ(base::count_code_points(text), 4u);
  }
}

TEST(Utf8, TellsOneLetterAfterAnother) {
  EXPECT_EQ(base::utf8_letter("a\xff").point, U'a');
  EXPECT_EQ(base::utf8_letter("\xea\xb0\x80x").point, 0xAC00u);
  EXPECT_EQ(base::utf8_letter("\xea\xb0\x80x").bytes, 3u);
  EXPECT_EQ(base::utf8_letter("").bytes, 0u);
  EXPECT_EQ(base::utf8_letter("\xed\xa0\x80").bytes, 0u) << "a surrogate";
  EXPECT_EQ(base::utf8_letter("\xf0\x9f\x98").bytes, 0u) << "cut short";
  EXPECT_TRUE(base::is_utf8("\xea\xb0\x80x"));
  EXPECT_FALSE(base::is_utf8("\xea\xb0x"));
}

}  // namespace
}  // namespace lockstep

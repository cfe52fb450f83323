#include "explain/width.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(DisplayWidth, CountsColumnsNotBytes) {
  EXPECT_EQ(explain::display_width(""), 0u);
  EXPECT_EQ(explain::display_width("rank 0"), 6u);
  EXPECT_EQ(explain::display_width("랭크"), 4u);
  EXPECT_EQ(explain::display_width("귀 0.5"), 6u);
  EXPECT_EQ(explain::display_width("é"), 1u);
  EXPECT_EQ(explain::display_width("漢字"), 4u);
  EXPECT_EQ(explain::display_width("가"), 2u);            // one syllable
  EXPECT_EQ(explain::display_width("\u1100\u1161"), 2u);  // the same, as two joined letters
  EXPECT_EQ(explain::display_width("e\u0301"), 1u);
}

TEST(DisplayWidth, CountsEachByteThatIsNotUtf8AsOne) {
  EXPECT_EQ(explain::display_width("\xFF\xFE"), 2u);
  EXPECT_EQ(explain::display_width("\xEA\xB0"), 2u);      // a syllable cut short
  EXPECT_EQ(explain::display_width("\xEA\x41\x41"), 3u);  // a lead byte without its followers
}

TEST(Wrap, BreaksAtSpacesByDisplayWidth) {
  EXPECT_EQ(explain::wrap("one two three", 7), (std::vector<std::string>{"one two", "three"}));
  EXPECT_EQ(explain::wrap("하나 둘 셋", 7), (std::vector<std::string>{"하나 둘", "셋"}));
  EXPECT_EQ(explain::wrap("하나 둘 셋", 6), (std::vector<std::string>{"하나", "둘 셋"}));
}

TEST(Wrap, GivesALongWordItsOwnLineAndDropsExtraSpaces) {
  EXPECT_EQ(explain::wrap("a  incomprehensible  b ", 4),
            (std::vector<std::string>{"a", "incomprehensible", "b"}));
  EXPECT_TRUE(explain::wrap("", 10).empty());
  EXPECT_TRUE(explain::wrap("  ", 10).empty());
}

}  // namespace
}  // namespace lockstep

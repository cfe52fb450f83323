#include "base/text/text.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Words = std::vector<std::string>;

TEST(Nearest, SuggestsOnlyWhatIsNear) {
  const std::vector<std::string> names = {"run", "train", "explain"};
  EXPECT_EQ(base::nearest("tran", names), "train");
  EXPECT_EQ(base::nearest("explian", names), "explain");
  EXPECT_EQ(base::nearest("xxxxxxxx", names), "");
}

TEST(DidYouMean, IsAnEndOfASentence) {
  EXPECT_EQ(base::did_you_mean("tran", {"run", "train"}), "; did you mean train?");
  EXPECT_EQ(base::did_you_mean("ful", {"full"}, "--"), "; did you mean --full?");
  EXPECT_EQ(base::did_you_mean("xxxxxxxx", {"run"}), "");
}

TEST(Split, KeepsEmptyPartsButTheLast) {
  EXPECT_EQ(base::split("a,,b", ','), (Words{"a", "", "b"}));
  EXPECT_EQ(base::split("a,", ','), (Words{"a"}));
  EXPECT_EQ(base::split(",", ','), (Words{""}));
  EXPECT_EQ(base::split("", ','), Words{});
  EXPECT_EQ(base::split("x y\nz\n", '\n'), (Words{"x y", "z"}));
}

TEST(SplitSetting, DropsSpacesAndEmptyParts) {
  EXPECT_EQ(base::split_setting(" a.bin, b c.bin ,, "), (Words{"a.bin", "b c.bin"}));
  EXPECT_EQ(base::split_setting(""), Words{});
}

}  // namespace
}  // namespace lockstep

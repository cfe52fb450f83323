#include "explain/average_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// The message of the UsageError that the flags cause; empty if there is none.
std::string refusal(const explain::AverageFlags& flags) {
  try {
    explain::parse_average_input(flags);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(AverageInput, IsBuiltInWithoutFlags) {
  const explain::AverageInput input = explain::parse_average_input({});
  EXPECT_TRUE(input.built_in);
  EXPECT_EQ(input.gradients.size(), 4u);
  EXPECT_EQ(input.weights, (std::vector<double>{0.5, 0.3, 0.2}));
  EXPECT_EQ(input.lr, 1.0);
  EXPECT_FALSE(input.descend);
}

TEST(AverageInput, TakesTheUsersNumbers) {
  const explain::AverageInput input =
      explain::parse_average_input({.gradients = "[[1, -2.5], [3, 4e2]]",
                                    .weights = "[0.5, 7]",
                                    .lr = "-0.25",
                                    .descend = true});
  EXPECT_FALSE(input.built_in);
  EXPECT_EQ(input.gradients, (std::vector<std::vector<double>>{{1, -2.5}, {3, 400}}));
  EXPECT_EQ(input.weights, (std::vector<double>{0.5, 7}));
  EXPECT_EQ(input.lr, -0.25);
  EXPECT_TRUE(input.descend);
}

TEST(AverageInput, KeepsTheBuiltInWeightsWhereTheyFitAndStartsAtZeroElsewhere) {
  EXPECT_EQ(explain::parse_average_input({.gradients = "[[1, 2, 3]]"}).weights,
            (std::vector<double>{0.5, 0.3, 0.2}));
  EXPECT_EQ(explain::parse_average_input({.gradients = "[[1, 2]]"}).weights,
            (std::vector<double>{0, 0}));
}

TEST(AverageInput, RefusesWhatIsNoListOfRowsOfNumbers) {
  for (const char* text : {"", "[", "{}", "3", "[]", "null", "[[1, 2], [3, 4]"}) {
    EXPECT_THAT(refusal({.gradients = text}), HasSubstr("is not a filled JSON list")) << text;
  }
  EXPECT_THAT(refusal({.gradients = "[1, 2]"}), HasSubstr("row 0 of --gradients is 1"));
  EXPECT_THAT(refusal({.gradients = "[[]]"}), HasSubstr("at least one number"));
  EXPECT_THAT(refusal({.gradients = "[[1], [\"x\"]]"}),
              HasSubstr("row 1 of --gradients holds \"x\", which is not a number"));
  EXPECT_THAT(refusal({.gradients = "[[true]]"}), HasSubstr("holds true"));
  EXPECT_THAT(refusal({.gradients = "[[[1]]]"}), HasSubstr("holds [1]"));
  EXPECT_THAT(refusal({.gradients = "[[1e200]]"}), HasSubstr("must lie between"));
}

TEST(AverageInput, RefusesRaggedRowsAndWeightsOfAnotherLength) {
  EXPECT_THAT(refusal({.gradients = "[[1, 2], [3]]"}),
              HasSubstr("row 1 of --gradients has length 1, row 0 has length 2"));
  EXPECT_THAT(refusal({.weights = "[1, 2]"}), HasSubstr("--weights has length 2"));
  EXPECT_THAT(refusal({.gradients = "[[1, 2]]", .weights = "[1]"}), HasSubstr("have length 2"));
  EXPECT_THAT(refusal({.weights = "[[1]]"}), HasSubstr("holds [1], which is not a number"));
}

TEST(AverageInput, RefusesALearningRateThatIsNoNumber) {
  for (const char* text : {"", "fast", "1x", "0,1", " 1"}) {
    EXPECT_THAT(refusal({.lr = text}), HasSubstr("is not a number")) << text;
  }
  EXPECT_THAT(refusal({.lr = "nan"}), HasSubstr("must lie between"));
  EXPECT_THAT(refusal({.lr = "inf"}), HasSubstr("must lie between"));
}

}  // namespace
}  // namespace lockstep

#include "explain/table.h"

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "explain/report.h"
#include "explain/width.h"

namespace lockstep {
namespace {

TEST(RenderTable, AlignsNumbersRightAndTextLeft) {
  const explain::Table table{.header = {"rank", "who", "ear"},
                             .rows = {{"0", "a", "0.5"}, {"10", "bcd", "-1"}}};
  EXPECT_EQ(explain::render_table(table, 2),
            "  rank  who  ear\n"
            "  ----  ---  ---\n"
            "     0  a    0.5\n"
            "    10  bcd   -1\n");
}

TEST(RenderTable, AlignsKoreanByItsWidth) {
  const explain::Table table{.header = {"랭크", "수염"}, .rows = {{"0", "길다"}, {"1", "x"}}};
  EXPECT_EQ(explain::render_table(table, 0),
            "랭크  수염\n"
            "----  ----\n"
            "   0  길다\n"
            "   1  x\n");
}

TEST(RenderTable, ARowOfAnotherLengthIsABug) {
  EXPECT_THROW(explain::render_table({.header = {"a", "b"}, .rows = {{"1"}}}, 0), InternalError);
}

TEST(NumberFormat, WritesAllNumbersWithTheFewestDecimalsThatShowThem) {
  EXPECT_EQ(explain::NumberFormat({0.1, 0.2}).list({0.1, 0.2}), "0.1, 0.2");
  EXPECT_EQ(explain::NumberFormat({0.2, 0.175}).list({0.2, 0.175}), "0.200, 0.175");
  EXPECT_EQ(explain::NumberFormat({1, -2}).list({1, -2}), "1, -2");
  EXPECT_EQ(explain::NumberFormat({0.1 + 0.2})(0.1 + 0.2), "0.3");  // 0.30000000000000004
  EXPECT_EQ(explain::NumberFormat({1.0 / 3})(1.0 / 3), "0.3333");
  EXPECT_EQ(explain::NumberFormat({1.0 / 3}, 2)(1.0 / 3), "0.33");
}

TEST(NumberFormat, HasNoMinusZero) {
  EXPECT_EQ(explain::NumberFormat({-0.0})(-0.0), "0");
  EXPECT_EQ(explain::NumberFormat({-1e-17, 0.25})(-1e-17), "0.00");
}

TEST(NumberFormat, WritesExtremeNumbersInScientificNotation) {
  EXPECT_EQ(explain::NumberFormat({1e20, 1})(1e20), "1e+20");
  EXPECT_EQ(explain::NumberFormat({2.5e-6})(2.5e-6), "2.5e-06");
}

TEST(RenderText, NumbersTheStepsAndHangsTheirLines) {
  explain::Report report{.title = "average: title"};
  report.steps.push_back({.sentence = std::string(60, 'a') + " " + std::string(60, 'b')});
  report.steps.push_back(
      {.sentence = "Then.", .table = explain::Table{.header = {"x"}, .rows = {{"1"}}}});
  EXPECT_EQ(explain::render_text(report), "average: title\n\n1. " + std::string(60, 'a') + "\n   " +
                                              std::string(60, 'b') +
                                              "\n\n2. Then.\n\n    x\n    -\n    1\n");
}

TEST(RenderJson, KeepsTheOrderAndPutsListsOfNumbersOnOneLine) {
  explain::Report report;
  report.data["ranks"] = 2;
  report.data["average"] = {0.2, 0.5};
  report.data["rows"] = {{1, 2}, {3, 4}};
  report.data["empty"] = nlohmann::ordered_json::array();
  const std::string text = explain::render_json(report);
  EXPECT_EQ(text,
            "{\n  \"ranks\": 2,\n  \"average\": [0.2,0.5],\n"
            "  \"rows\": [\n    [1,2],\n    [3,4]\n  ],\n  \"empty\": []\n}\n");
  EXPECT_EQ(nlohmann::ordered_json::parse(text), report.data);
}

}  // namespace
}  // namespace lockstep

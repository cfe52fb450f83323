// `lockstep explain average` on real ranks, against averages computed here.

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "explain/explain_run.h"

namespace lockstep {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using List = std::vector<double>;
using Rows = std::vector<List>;

constexpr double kTolerance = 1e-12;

MATCHER(IsNear, "") {
  return std::abs(std::get<0>(arg) - std::get<1>(arg)) <= kTolerance;
}

void expect_near(const nlohmann::json& actual, const List& expected) {
  EXPECT_THAT(actual.get<List>(), Pointwise(IsNear(), expected));
}

// Every rank's row is `expected`.
void expect_on_each_rank(const nlohmann::json& rows, size_t num_ranks, const List& expected) {
  ASSERT_EQ(rows.size(), num_ranks);
  for (const auto& row : rows) {
    expect_near(row, expected);
  }
}

List average_of(const Rows& rows) {
  List average(rows.front().size(), 0.0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      average[i] += row[i] / static_cast<double>(rows.size());
    }
  }
  return average;
}

// weights + times * factor * average
List moved(List weights, const List& average, double factor, int times = 1) {
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] += times * factor * average[i];
  }
  return weights;
}

void check_users_numbers(const Rows& gradients, const List& weights, double lr, bool descend) {
  std::vector<std::string> arguments = {"average",
                                        "--gradients",
                                        nlohmann::json(gradients).dump(),
                                        "--weights",
                                        nlohmann::json(weights).dump(),
                                        "--lr",
                                        std::to_string(lr)};
  if (descend) {
    arguments.emplace_back("--descend");
  }
  const nlohmann::json data = explain_json(arguments);
  const List average = average_of(gradients);
  const double factor = descend ? -lr : lr;
  EXPECT_EQ(data["ranks"], gradients.size());
  EXPECT_EQ(data["gradients"].get<Rows>(), gradients);
  EXPECT_EQ(data["weights_before"].get<List>(), weights);
  EXPECT_EQ(data["lr"], lr);
  EXPECT_EQ(data["descend"], descend);
  EXPECT_EQ(data["same_bits"], true);
  expect_near(data["average"], average);
  expect_on_each_rank(data["weights_after"], gradients.size(), moved(weights, average, factor));
  expect_on_each_rank(data["second_iteration"]["weights_after"], gradients.size(),
                      moved(weights, average, factor, 2));
  EXPECT_FALSE(data.contains("second_example"));
}

TEST(ExplainAverage, HoldsTheWorkedExample) {
  const nlohmann::json data = explain_json({"average"});
  EXPECT_EQ(data["ranks"], 4);
  EXPECT_EQ(data["gradients"].get<Rows>(),
            (Rows{{0.1, 0.2, 0.3}, {0.2, 0.1, 0.4}, {0.3, 0.3, 0.2}, {0.2, 0.2, 0.3}}));
  expect_near(data["average"], {0.2, 0.2, 0.3});
  EXPECT_EQ(data["weights_before"].get<List>(), (List{0.5, 0.3, 0.2}));
  expect_on_each_rank(data["weights_after"], 4, {0.7, 0.5, 0.5});
  EXPECT_EQ(data["same_bits"], true);
  EXPECT_EQ(data["lr"], 1.0);
  EXPECT_EQ(data["backend"], "shm");
  expect_near(data["second_iteration"]["weights_before"], {0.7, 0.5, 0.5});
  expect_on_each_rank(data["second_iteration"]["weights_after"], 4, {0.9, 0.7, 0.8});
}

TEST(ExplainAverage, HoldsTheSecondExampleWhichDescends) {
  const nlohmann::json example = explain_json({"average"})["second_example"];
  const Rows gradients = {{0.8, 0.2, 0.5}, {0.6, 0.4, 0.3}, {0.7, 0.3, 0.4}, {0.5, 0.1, 0.6}};
  EXPECT_EQ(example["gradients"].get<Rows>(), gradients);
  expect_near(example["average"], {0.65, 0.25, 0.45});
  expect_on_each_rank(example["params_after"], 4,
                      moved(example["params_before"].get<List>(), average_of(gradients),
                            -example["lr"].get<double>()));
}

TEST(ExplainAverage, StartsOneRankForEachRowOfTheUser) {
  check_users_numbers({{1, -2}, {3, 4.5}, {5e3, 0}}, {0.25, -1}, 0.5, /*descend=*/false);
  check_users_numbers({{2, 3, 5, 7}}, {0, 0, 0, 1}, 1, /*descend=*/true);
}

TEST(ExplainAverage, TellsItInKorean) {
  const base::Output& output = explain({"average", "--lang", "ko"});
  EXPECT_TRUE(output.status.ok()) << output.err;
  for (const char* part : {"랭크   귀  수염   눈\n", "(0.1 + 0.2 + 0.3 + 0.2) / 4", "0.65",
                           "뺍니다", "비트 단위로 비교하니"}) {
    EXPECT_THAT(output.out, HasSubstr(part));
  }
}

TEST(ExplainAverage, TellsItInEnglishOnce) {
  const base::Output& output = explain({"average"});
  EXPECT_TRUE(output.status.ok()) << output.err;
  EXPECT_EQ(output.err, "");
  EXPECT_EQ(output.out.find("average: different"), output.out.rfind("average: different"));
  for (const char* part : {"ear 0.5, whisker 0.3, eye 0.2", "(0.1 + 0.2 + 0.3 + 0.2) / 4", "0.65",
                           "   3  0.7      0.5  0.5\n", "   3  0.9      0.7  0.8\n"}) {
    EXPECT_THAT(output.out, HasSubstr(part));
  }
}

TEST(ExplainAverage, RefusesBadNumbersOnceAndOnEveryRank) {
  const base::Output& output = explain({"average", "--gradients", "[[1, 2], [3]]"});
  EXPECT_EQ(output.status.code, 2) << output.status.text();
  EXPECT_EQ(output.out, "");
  const std::string sentence = "row 1 of --gradients has length 1, row 0 has length 2";
  EXPECT_THAT(output.err, HasSubstr(sentence));
  EXPECT_EQ(output.err.find(sentence), output.err.rfind(sentence));
}

}  // namespace
}  // namespace lockstep

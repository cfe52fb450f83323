#include "explain/lesson.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(Lessons, AreFoundByName) {
  for (const char* name :
       {"average", "features", "sync", "split", "replicate", "scratch", "pretrained"}) {
    EXPECT_EQ(explain::find_lesson(name).name, name);
  }
}

TEST(Lessons, AnUnknownNameIsAnsweredWithTheNearest) {
  try {
    explain::find_lesson("avarage");
    FAIL() << "there is no lesson avarage";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no lesson \"avarage\""));
    EXPECT_THAT(error.what(), HasSubstr("did you mean `average`?"));
  }
}

TEST(Lessons, AreListedWithOneLineEachInBothLanguages) {
  for (const explain::Language language : {explain::Language::English, explain::Language::Korean}) {
    const std::string list = explain::list_lessons(language);
    EXPECT_EQ(std::count(list.begin(), list.end(), '\n'), std::ssize(explain::lessons()));
    for (const auto& lesson : explain::lessons()) {
      EXPECT_THAT(list, HasSubstr(std::string(lesson.name)));
      EXPECT_THAT(list, HasSubstr(explain::Speaker(lesson.phrases, language)("summary")));
      EXPECT_FALSE(explain::Speaker(lesson.phrases, language)("title").empty());
    }
  }
}

TEST(Lessons, RefuseAGroupOfAnotherSize) {
  Group alone = make_single_group();
  explain::LessonOptions options{.average = explain::parse_average_input({})};
  for (const auto& lesson : explain::lessons()) {
    EXPECT_THROW(lesson.run(alone, options), UsageError) << lesson.name;
  }
}

TEST(Lessons, AverageRunsInAGroupOfOneWithOneRow) {
  Group alone = make_single_group();
  const explain::AverageInput input =
      explain::parse_average_input({.gradients = "[[1, 2]]", .weights = "[3, 4]", .lr = "0.5"});
  const explain::Report report =
      explain::run_average(alone, {.language = explain::Language::Korean, .average = input});
  EXPECT_EQ(report.data["average"], (std::vector<double>{1, 2}));
  EXPECT_EQ(report.data["weights_after"], (std::vector<std::vector<double>>{{3.5, 5}}));
  EXPECT_EQ(report.data["same_bits"], true);
}

}  // namespace
}  // namespace lockstep

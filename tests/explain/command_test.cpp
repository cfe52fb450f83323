// The command line of `lockstep explain`: lists, languages, mistakes.

#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "explain/explain_run.h"
#include "support/paths.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// lockstep-explain without a launcher.
base::Output run_alone(std::vector<std::string> arguments,
                       std::map<std::string, std::string> env = {}) {
  arguments.insert(arguments.begin(), testing_support::in_build("lockstep-explain"));
  env.emplace("LC_ALL", "C.UTF-8");
  return base::run_process({.argv = arguments, .env = env},
                           base::Deadline::after(std::chrono::seconds(30)));
}

void expect_refused(const base::Output& output, const std::string& sentence) {
  EXPECT_EQ(output.status.code, 2) << output.status.text();
  EXPECT_EQ(output.out, "");
  EXPECT_THAT(output.err, HasSubstr(sentence));
}

TEST(ExplainCommand, ListsTheLessons) {
  const base::Output& output = explain({});
  EXPECT_TRUE(output.status.ok()) << output.err;
  for (const char* lesson :
       {"average", "features", "sync", "split", "replicate", "scratch", "pretrained"}) {
    EXPECT_THAT(output.out, HasSubstr(std::string("  ") + lesson + " "));
  }
  EXPECT_EQ(run_alone({"explain", "list"}).out, output.out);
  const base::Output json = run_alone({"explain", "list", "--json"});
  EXPECT_EQ(nlohmann::json::parse(json.out)[0]["name"], "replicate");
}

TEST(ExplainCommand, SpeaksTheLanguageOfTheLocale) {
  const base::Output korean =
      run_alone({"explain"}, {{"LC_ALL", ""}, {"LC_MESSAGES", ""}, {"LANG", "ko_KR.UTF-8"}});
  EXPECT_THAT(korean.out, HasSubstr("그래디언트"));
  const base::Output told =
      run_alone({"explain", "list", "--lang", "en"}, {{"LC_ALL", "ko_KR.UTF-8"}});
  EXPECT_THAT(told.out, Not(HasSubstr("그래디언트")));
}

TEST(ExplainCommand, HelpsWithoutALauncher) {
  const base::Output output = run_alone({"explain", "--help"});
  EXPECT_TRUE(output.status.ok()) << output.err;
  for (const char* part :
       {"--gradients", "--descend", "--lang", "lockstep explain average", "replicate"}) {
    EXPECT_THAT(output.out, HasSubstr(part));
  }
}

TEST(ExplainCommand, SaysHowToStartIt) {
  expect_refused(run_alone({"explain", "sync"}), "start them with `lockstep explain sync`");
}

TEST(ExplainCommand, RefusesWhatItDoesNotKnow) {
  expect_refused(explain({"avarage"}), "did you mean `average`?");
  expect_refused(run_alone({"explain", "sync", "--lang", "fr"}), "--lang fr is not known");
  expect_refused(run_alone({"explain", "sync", "--lr", "2"}),
                 "belong to `lockstep explain average`");
  expect_refused(run_alone({"explain", "average", "--lr", "-x"}), "--lr");
  expect_refused(run_alone({"explain", "sync", "--model", "x"}),
                 "belongs to `lockstep explain pretrained`");
  expect_refused(explain({"pretrained", "--model", "/nowhere"}), "/nowhere");
  expect_refused(run_alone({"explain", "--colour"}), "--colour");
  expect_refused(run_alone({"explian"}), "no command \"explian\"");
}

}  // namespace
}  // namespace lockstep

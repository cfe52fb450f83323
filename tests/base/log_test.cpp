#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/log.h>

#include "base/process/process.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::MatchesRegex;

class LogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    level_ = log::level();
    log::set_sink([this](log::Level, std::string_view line) { lines_.emplace_back(line); });
  }
  void TearDown() override {
    log::set_sink({});
    log::set_level(level_);
    log::set_rank(std::nullopt);
  }
  log::Level level_ = log::Level::Info;
  std::vector<std::string> lines_;
};

TEST_F(LogTest, ALineHasRankLevelAreaAndMessage) {
  log::info("ddp", "{} buckets", 6);
  log::set_rank(3);
  log::warn("comm", "late");
  EXPECT_THAT(lines_, ElementsAre("r- INFO ddp: 6 buckets", "r3 WARN comm: late"));
}

TEST_F(LogTest, LevelsBelowTheChosenOneAreNotWritten) {
  log::set_level(log::Level::Warn);
  log::debug("a", "x");
  log::info("a", "x");
  log::warn("a", "y");
  log::error("a", "z");
  EXPECT_THAT(lines_, ElementsAre("r- WARN a: y", "r- ERROR a: z"));
  EXPECT_FALSE(log::enabled(log::Level::Info));
  log::set_level(log::Level::Off);
  log::error("a", "z");
  EXPECT_EQ(lines_.size(), 2u);
}

TEST_F(LogTest, LevelNamesAreThoseOfTheVariable) {
  EXPECT_EQ(log::parse_level("debug"), log::Level::Debug);
  EXPECT_EQ(log::parse_level("off"), log::Level::Off);
  EXPECT_EQ(log::parse_level("INFO"), std::nullopt);
}

// What a fresh process writes, and where, under the two variables: this binary runs itself as
// `log_child`.
base::Output run_child(std::map<std::string, std::string> env) {
  base::ProcessOptions options;
  options.argv = {"/proc/self/exe", "--gtest_also_run_disabled_tests",
                  "--gtest_filter=LogChild.DISABLED_Writes"};
  options.env = std::move(env);
  return base::run_process(options, base::Deadline::after(std::chrono::seconds(20)));
}

TEST(LogChild, DISABLED_Writes) {  // run by the test below, in a process of its own
  log::set_rank(3);
  log::debug("a", "debug line");
  log::info("a", "info line");
}

TEST(Log, GoesToStandardErrorAsTheVariablesSay) {
  const base::Output plain = run_child({});
  EXPECT_THAT(plain.err, MatchesRegex("[0-9:.]+ r3 INFO a: info line\n"));
  EXPECT_EQ(plain.out.find("info line"), std::string::npos);
  EXPECT_NE(run_child({{"LOCKSTEP_LOG_LEVEL", "debug"}}).err.find("debug line"), std::string::npos);
  EXPECT_EQ(run_child({{"LOCKSTEP_LOG_RANKS", "0,2"}}).err, "");
  EXPECT_NE(run_child({{"LOCKSTEP_LOG_RANKS", "0,3"}}).err.find("info line"), std::string::npos);
}

TEST(Log, ABadVariableIsReportedAndIgnored) {
  const std::string level = run_child({{"LOCKSTEP_LOG_LEVEL", "loud"}}).err;
  EXPECT_NE(level.find("LOCKSTEP_LOG_LEVEL=loud is ignored"), std::string::npos);
  EXPECT_NE(level.find("info line"), std::string::npos);
  EXPECT_NE(run_child({{"LOCKSTEP_LOG_RANKS", "0,x"}}).err.find("info line"), std::string::npos);
}

}  // namespace
}  // namespace lockstep

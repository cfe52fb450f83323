// `lockstep bench data` as a user runs it.

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/process/process.h"
#include "support/temp_folder.h"

namespace lockstep::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

base::Output bench(std::vector<std::string> arguments) {
  std::vector<std::string> argv = {LOCKSTEP_BIN_DIR "/lockstep", "bench", "data"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return base::run_process({.argv = std::move(argv), .env = {}},
                           base::Deadline::after(std::chrono::minutes(1)));
}

base::Output small(const TempFolder& folder, std::vector<std::string> more) {
  more.insert(more.end(), {"--pictures=5", "--token-megabytes=1", "--batch=2", "--repeats=2",
                           "--folder", folder.path()});
  return bench(more);
}

// What stands in for Python: it answers as `lines` say.
std::string standin(const TempFolder& folder, const std::string& lines) {
  return folder.file("python", "#!/bin/sh\n" + lines, 0755);
}

TEST(BenchData, JsonHoldsEveryFigureAndNothingIsLeftBehind) {
  const TempFolder folder;
  const base::Output output = small(folder, {"--json", "--peer=none"});
  ASSERT_TRUE(output.status.ok()) << output.err;
  const json answer = json::parse(output.out);
  EXPECT_EQ(answer.at("pictures"), 5);
  EXPECT_EQ(answer.at("workers"), 2);
  EXPECT_GT(answer.at("samples_per_s"), 0);
  EXPECT_GT(answer.at("token_gb_per_s"), 0);
  EXPECT_EQ(answer.at("raw_s").at("pictures").size(), 2u);
  EXPECT_EQ(answer.at("raw_s").at("tokens").size(), 2u);
  for (const char* name : {"peer", "peer_samples_per_s", "speedup"}) {
    EXPECT_TRUE(answer.at(name).is_null()) << name;
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(BenchData, APeerIsMeasuredInTurn) {
  const TempFolder folder;
  const TempFolder bin;
  const base::Output output =
      small(folder, {"--json", "--peer-python",
                     standin(bin, "echo ready; while read line; do echo 0.5 5; done\n")});
  ASSERT_TRUE(output.status.ok()) << output.err;
  const json answer = json::parse(output.out);
  EXPECT_EQ(answer.at("peer"), "torchvision");
  EXPECT_DOUBLE_EQ(answer.at("peer_samples_per_s"), 10);
  EXPECT_GT(answer.at("speedup"), 0);

  const base::Output absent = small(folder, {"--peer-python", standin(bin, "echo absent\n")});
  ASSERT_TRUE(absent.status.ok()) << absent.err;
  EXPECT_THAT(absent.err, HasSubstr("has no torchvision, its figures are left out"));
  EXPECT_THAT(absent.out, AllOf(HasSubstr("samples/s"), HasSubstr("GB/s")));
  const base::Output nowhere = small(folder, {"--peer-python", "/nowhere/python"});
  EXPECT_THAT(nowhere.err, HasSubstr("/nowhere/python cannot be started"));
  const base::Output wrong = small(
      folder, {"--peer-python", standin(bin, "echo ready; while read line; do echo 1 4; done\n")});
  EXPECT_EQ(wrong.status.code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("the peer read 4 pictures of 5"));
}

TEST(BenchData, MistakesOnTheLineExitWith2) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"--pictures", "0"}, "--pictures"},
      {{"--workers", "-1"}, "--workers"},
      {{"--peer", "dali"}, "torchvision or none"},
      {{"what"}, "there is no place for \"what\""},
  };
  for (const auto& [arguments, expected] : cases) {
    const base::Output output = bench(arguments);
    EXPECT_EQ(output.status.code, 2) << expected;
    EXPECT_THAT(output.err, HasSubstr(expected));
  }
  EXPECT_TRUE(bench({"--help"}).status.ok());
}

}  // namespace
}  // namespace lockstep::test

// `lockstep bench checkpoint` as a user runs it.

#include <algorithm>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/process/process.h"
#include "support/paths.h"
#include "support/temp_folder.h"

namespace lockstep::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr auto kPatience = std::chrono::seconds(100);  // only failures take it

base::Output bench(std::vector<std::string> arguments) {
  std::vector<std::string> argv = {testing_support::in_build("lockstep"), "bench", "checkpoint"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return base::run_process({.argv = std::move(argv)}, base::Deadline::after(kPatience));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

// 9 MB hold a transformer's parameters and their momentum; 2 MB hold some of the parameters.
TEST(BenchCheckpoint, IsHeldAgainstTheFastestSynchronousSave) {
  for (const std::string state : {"9MB", "2MB"}) {
    const TempFolder folder;
    const base::Output output = bench({"--state", state, "--ranks", "3", "--repeats", "1",
                                       "--step-ms", "5", "--folder", folder.path(), "--json"});
    ASSERT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
    const json answer = json::parse(output.out);
    EXPECT_EQ(answer.at("state_bytes"), state == "9MB" ? 9'000'000 : 2'000'000);
    const json& raw = answer.at("raw_s");
    const double sync_s = answer.at("sync_save_s");
    EXPECT_GT(sync_s, 0);
    for (const char* way : {"sync_library", "sync_buffered", "sync_direct", "save"}) {
      if (!raw.at(way).empty()) {  // not every file system knows direct writes
        EXPECT_GE(median(raw.at(way)), sync_s) << way;
      }
    }
    EXPECT_FALSE(raw.at("sync_buffered").empty());
    EXPECT_THAT((std::vector<std::string>{"library", "buffered", "direct", "checkpoint"}),
                ::testing::Contains(answer.at("sync_save").get<std::string>()));
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "nothing is left";
  }
}

TEST(BenchCheckpoint, AMistakeIsOneSentence) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--state", "500"}, "--state: \"500\" is not a size from 1MB to 64GB; write 4096,"},
      {{"--state", "1.5.5GB"}, "--state: \"1.5.5GB\" is not a size"},
      {{"--step-ms", "0"}, "--step-ms: Value 0 not in range 1 to 60000"},
      {{"--ranks", "65"}, "--ranks: Value 65 not in range 1 to 64"},
      {{"more"}, "no place for \"more\""},
  };
  for (const auto& [arguments, sentence] : cases) {
    const base::Output output = bench(arguments);
    EXPECT_EQ(output.status.code, 2) << sentence;
    EXPECT_THAT(output.err, HasSubstr(sentence));
  }
}

}  // namespace
}  // namespace lockstep::test

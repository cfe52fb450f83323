// `lockstep bench load` as a user runs it.

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/process/process.h"
#include "support/paths.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using nlohmann::json;
using test::TempFolder;
using ::testing::HasSubstr;
using Text = std::vector<std::string>;

constexpr auto kPatience = std::chrono::seconds(100);  // only failures take it

base::Output bench(Text arguments) {
  base::ProcessOptions options{.argv = {testing_support::in_build("lockstep"), "bench", "load"}};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  return base::run_process(options, base::Deadline::after(kPatience));
}

TEST(BenchLoad, GivesEveryFigure) {
  for (const std::string format : {"torch", "safetensors"}) {
    const TempFolder folder;
    Text arguments = {"--size", "8MB",      "--ranks", "2",        "--repeats",   "2",     "--peer",
                      "none",   "--format", format,    "--folder", folder.path(), "--json"};
    if (format == "torch") {
      arguments.push_back("--fresh-memory");
    }
    const base::Output output = bench(arguments);
    ASSERT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
    const json answer = json::parse(output.out);
    EXPECT_GE(answer.at("file_bytes").get<double>(), 8e6);
    EXPECT_LE(answer.at("file_bytes").get<double>(), 10e6);
    EXPECT_EQ(answer.at("mode"), "cooperative");
    EXPECT_EQ(answer.at("fresh_memory"), format == "torch");
    EXPECT_LE(answer.at("bytes_read").get<double>(), 1.05 * answer.at("file_bytes").get<double>());
    for (const char* name :
         {"cold_s", "warm_s", "warm_cpu_s", "sequential_cold_s", "sequential_best_s"}) {
      EXPECT_GT(answer.at(name).get<double>(), 0) << name;
    }
    for (const char* name : {"peer", "peer_warm_s", "speedup"}) {
      EXPECT_TRUE(answer.at(name).is_null()) << name;
    }
    EXPECT_LE(answer.at("extra_peak_bytes_per_rank").get<int64_t>(), 64 << 20);
    ASSERT_EQ(answer.at("modes").size(), 3u);
    EXPECT_EQ(answer.at("modes")[0].at("raw_s").at("cold").size(), 2u);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "the file is removed";
  }
}

TEST(BenchLoad, PrintsATableWithoutAPeer) {
  const TempFolder folder;
  const base::Output output = bench({"--size", "2MB", "--ranks", "1", "--repeats", "1", "--folder",
                                     folder.path(), "--peer-python", folder.at("no-python")});
  EXPECT_TRUE(output.status.ok()) << output.err;
  EXPECT_THAT(output.out, AllOf(HasSubstr("cooperative"), HasSubstr("sequential"),
                                HasSubstr("auto: each, there is one rank")));
}

TEST(BenchLoad, RefusesWhatItCannotMeasure) {
  const auto refused = [](Text arguments) {
    const base::Output output = bench(std::move(arguments));
    EXPECT_EQ(output.status.code, 2);
    return output.err;
  };
  EXPECT_THAT(refused({"--size", "1.5"}), HasSubstr("or 64MB or 1.5GB"));
  EXPECT_THAT(refused({"--format", "tar"}), HasSubstr("--format"));
  EXPECT_THAT(refused({"--format", "safetensors"}), HasSubstr("--peer none"));
}

}  // namespace
}  // namespace lockstep

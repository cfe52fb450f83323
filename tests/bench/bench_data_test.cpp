// `lockstep bench data` as a user runs it.

#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/data/image_data.h>

#include "base/process/process.h"
#include "bench/data/bench_data_files.h"
#include "support/paths.h"
#include "support/temp_folder.h"

namespace lockstep::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

base::Output bench(std::vector<std::string> arguments) {
  std::vector<std::string> argv = {testing_support::in_build("lockstep"), "bench", "data"};
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

// The pixels of the five pictures that `small` reads, as lockstep sees them in an evaluation, each
// number larger by `shift`.
std::string pixels(float shift) {
  const TempFolder folder;
  write_bench_pictures(folder.path(), 5);
  const auto data = open_image_folder(folder.path());
  std::vector<SampleKey> keys;
  for (int64_t i = 0; i < 5; ++i) {
    keys.push_back({.index = i});
  }
  const at::Tensor input = data->batch(keys).input.add(shift);
  return {static_cast<const char*>(input.const_data_ptr()), input.nbytes()};
}

// A peer that says what `pixels` says and then reads five pictures in half a second each time.
std::string peer_with(const TempFolder& folder, const std::string& pixels) {
  return standin(folder, "echo ready; read line; echo pixels " + std::to_string(pixels.size() / 4) +
                             "; cat " + folder.file("pixels", pixels) +
                             "\nwhile read line; do echo 0.5 5; done\n");
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
      small(folder, {"--json", "--peer-python", peer_with(bin, pixels(0.01f))});
  ASSERT_TRUE(output.status.ok()) << output.err;
  const json answer = json::parse(output.out);
  EXPECT_EQ(answer.at("peer"), "torchvision");
  EXPECT_DOUBLE_EQ(answer.at("peer_samples_per_s"), 10);
  EXPECT_GT(answer.at("speedup"), 0);
  EXPECT_NEAR(answer.at("pixel_difference"), 0.01 * 0.229 * 255, 0.05);

  const base::Output absent = small(folder, {"--peer-python", standin(bin, "echo absent\n")});
  ASSERT_TRUE(absent.status.ok()) << absent.err;
  EXPECT_THAT(absent.err, HasSubstr("has no torchvision, its figures are left out"));
  EXPECT_THAT(absent.out, AllOf(HasSubstr("samples/s"), HasSubstr("GB/s")));
  const base::Output nowhere = small(folder, {"--peer-python", "/nowhere/python"});
  EXPECT_THAT(nowhere.err, HasSubstr("/nowhere/python cannot be started"));
}

TEST(BenchData, WrongPixelsAndMissingPicturesEndTheRun) {
  const TempFolder folder;
  const TempFolder bin;
  const std::string right = pixels(0);
  const auto refused = [&](const std::string& python) {
    const base::Output output = small(folder, {"--peer-python", python});
    EXPECT_EQ(output.status.code, 1);
    return output.err;
  };
  EXPECT_THAT(refused(peer_with(bin, pixels(0.05f))), HasSubstr("picture 0 differs from the peer"));
  EXPECT_THAT(refused(peer_with(bin, right.substr(4))), HasSubstr("and said \"pixels 752639\""));
  EXPECT_THAT(refused(standin(bin, "echo ready; read line; echo pixels 752640; echo short\n")),
              HasSubstr("the peer ended after 6 of 3010560 bytes"));
  EXPECT_THAT(refused(standin(bin, "echo ready; read line; echo pixels 752640; cat " +
                                       bin.file("pixels", right) + "; read line; echo 1 4\n")),
              HasSubstr("the peer read 4 pictures of 5"));
}

TEST(BenchData, MistakesOnTheLineExitWith2) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"--pictures", "0"}, "--pictures"},
      {{"--workers", "-1"}, "--workers"},
      {{"--peer", "dali"}, "--peer: dali not in {torchvision,none}"},
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

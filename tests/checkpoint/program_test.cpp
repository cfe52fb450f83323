// `lockstep inspect` and `lockstep bench checkpoint` as their users run them.

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/process/process.h"
#include "checkpoint_files/manifest.h"
#include "support/paths.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using nlohmann::json;
using test::TempFolder;
using ::testing::HasSubstr;
using Text = std::vector<std::string>;

constexpr auto kPatience = std::chrono::seconds(100);  // only failures take it

base::Output lockstep(Text arguments) {
  arguments.insert(arguments.begin(), testing_support::in_build("lockstep"));
  return base::run_process({.argv = std::move(arguments)}, base::Deadline::after(kPatience));
}

// A checkpoint of one shard, whose bytes are a text.
void write_checkpoint(const TempFolder& folder, int64_t step, const std::string& bytes) {
  const std::string name = "step-0000000" + std::to_string(step);
  std::filesystem::create_directory(folder.at(name));
  folder.file(name + "/shard-00000-of-00001.safetensors", bytes);
  folder.file(
      name + "/manifest.json",
      checkpoint_files::manifest_text(
          {.step = step,
           .sequence = static_cast<uint64_t>(step),
           .created_s = 1'700'000'000,
           .score = 0.5,
           .values = {{"epoch", "2"}},
           .shards = {{"shard-00000-of-00001.safetensors", bytes.size(), base::xxh3_hex(bytes)}},
           .tensors = {{"w", formats::DType::U8, {2, 4}, {{0, 0, 0, 8}}}}}));
}

TEST(InspectCheckpoint, ShowsOneAndVerifiesIt) {
  const TempFolder folder;
  write_checkpoint(folder, 1, "12345678");
  const base::Output shown = lockstep({"inspect", folder.at("step-00000001")});
  EXPECT_EQ(shown.status.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("step-00000001: checkpoint of step 1, 8 B in 1 shards, saved "
                                   "2023-11-14 22:13:20 UTC, score 0.5\n1 tensors, 8 elements, "
                                   "8 B; XXH3 of every shard: not read\n  epoch = 2\n"));
  EXPECT_THAT(shown.out, HasSubstr("\nw     U8    [2, 4]  8 B   1\n"));
  const base::Output verified = lockstep({"inspect", "--verify", folder.at("step-00000001")});
  EXPECT_EQ(verified.status.code, 0) << verified.err;
  EXPECT_THAT(verified.out, HasSubstr("XXH3 of every shard: verified\n"));
}

TEST(InspectCheckpoint, NamesTheDamagedOnesOfAFolder) {
  const TempFolder folder;
  write_checkpoint(folder, 1, "12345678");
  write_checkpoint(folder, 2, "12345678");
  write_checkpoint(folder, 3, "12345678");
  folder.file("step-00000002/shard-00000-of-00001.safetensors", "12345679");
  folder.file("step-00000003/manifest.json", "{}");
  const base::Output verified = lockstep({"inspect", "--verify", folder.path()});
  EXPECT_EQ(verified.status.code, 1);
  EXPECT_THAT(verified.out, HasSubstr("safetensors: damaged: its XXH3 is "));
  EXPECT_THAT(verified.out, HasSubstr("not a manifest of a checkpoint"));
  const base::Output spoken = lockstep({"inspect", "--verify", "--json", folder.path()});
  EXPECT_EQ(spoken.status.code, 1);
  const json answer = json::parse(spoken.out).at("checkpoints");
  ASSERT_EQ(answer.size(), 3u);
  EXPECT_EQ(answer[0].at("step"), 3);
  EXPECT_FALSE(answer[1].at("is_verified").get<bool>());
  EXPECT_TRUE(answer[2].at("is_verified").get<bool>());
  EXPECT_EQ(answer[2].at("tensors")[0].at("name"), "w");
  EXPECT_EQ(lockstep({"inspect", "--tree", folder.path()}).status.code, 2);
}

TEST(InspectCheckpoint, OneThatWasNeverCommittedIsNone) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.at("step-00000001"));
  const base::Output shown = lockstep({"inspect", folder.at("step-00000001")});
  EXPECT_EQ(shown.status.code, 1);
  EXPECT_THAT(shown.err, HasSubstr("this checkpoint was never committed"));
}

TEST(BenchCheckpoint, GivesEveryFigure) {
  const TempFolder folder;
  const base::Output output =
      lockstep({"bench", "checkpoint", "--state", "9MB", "--ranks", "2", "--repeats", "1",
                "--step-ms", "5", "--folder", folder.path(), "--json"});
  ASSERT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  const json answer = json::parse(output.out);
  EXPECT_EQ(answer.at("state_bytes"), 9'000'000);
  EXPECT_GE(answer.at("bytes_written").get<double>(), 9e6);
  EXPECT_LE(answer.at("bytes_written").get<double>(), 9.1e6) << "each byte once";
  for (const char* name : {"sync_save_s", "write_gb_per_s", "disk_gb_per_s", "calm_step_s"}) {
    EXPECT_GT(answer.at(name).get<double>(), 0) << name;
  }
  EXPECT_TRUE(answer.at("stall_s").is_number());
  EXPECT_EQ(answer.at("raw_s").at("stall").size(), 4u);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "nothing is left";
}

TEST(BenchCheckpoint, RefusesWhatItCannotMeasure) {
  for (const Text& arguments : {Text{"--state", "500"}, Text{"--step-ms", "0"}, Text{"more"}}) {
    Text line{"bench", "checkpoint"};
    line.insert(line.end(), arguments.begin(), arguments.end());
    EXPECT_EQ(lockstep(line).status.code, 2) << arguments[0];
  }
}

}  // namespace
}  // namespace lockstep

// Every file of a checkpoint, cut and with a flipped bit: it is seen, and the one before is used.

#include <filesystem>
#include <fstream>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "checkpoint/checkpoint_state.h"
#include "support/fleet.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using test::names_in;
using test::TempFolder;
using test::Warnings;
using ::testing::HasSubstr;
using testing_support::rank_argument;

// Little, for it is read a hundred times.
std::vector<NamedTensor> state_of(int64_t step) {
  return {{"large", at::full({100'001}, static_cast<double>(step))},
          {"small", at::full({17}, step, at::kLong)}};
}

bool save(CheckpointWriter& writer, int64_t step) {
  using Files = std::map<std::string, std::string>;
  const Files files = {{"tokenizer.json", "{\"version\": \"1.0\"}"}};
  writer.begin({.step = step, .attachments = std::make_shared<const Files>(files)}, state_of(step));
  writer.wait();
  return writer.take_results().at(0).committed;
}

// Loads and compares what is found, and returns its step.
int64_t load_newest(const std::string& location, Group& group) {
  const auto checkpoint = find_checkpoint(location, group);
  EXPECT_TRUE(checkpoint);
  const auto wanted = state_of(checkpoint->info().step);
  const auto targets = test::targets_like(wanted);
  checkpoint->load(targets, group);
  test::expect_same_bits(targets, wanted);
  return checkpoint->info().step;
}

class Corruption : public ::testing::Test {
 protected:
  void SetUp() override {
    testing_support::run_ranks(2,
                               [](Group& group) {
                                 CheckpointWriter writer(rank_argument(), group);
                                 save(writer, 1);
                                 save(writer, 2);
                               },
                               {.argument = folder_.path()});
  }

  void write(const std::string& path, const std::string& bytes) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  void expect_seen(const std::string& file) {
    const Warnings warnings;
    EXPECT_EQ(load_newest(folder_.path(), alone_), 1) << file;
    EXPECT_THAT(warnings.text(), HasSubstr("step-00000002 is not used: ")) << file;
    EXPECT_THROW(load_newest(folder_.at("step-00000002"), alone_), FormatError) << file;
    const auto checks = verify_checkpoints(folder_.path());
    ASSERT_EQ(checks.size(), 2u);
    EXPECT_EQ(checks[0].step, 2);
    EXPECT_NE(checks[0].problem, "");
    EXPECT_EQ(checks[1].step, 1);
    EXPECT_EQ(checks[1].problem, "");
  }

  const TempFolder folder_;
  Group alone_ = make_single_group();
};

TEST_F(Corruption, OfAnyFileIsSeenAndTheOneBeforeIsUsed) {
  ASSERT_EQ(load_newest(folder_.path(), alone_), 2);
  for (const std::string& name : names_in(folder_.at("step-00000002"))) {
    const std::string file = folder_.at("step-00000002/" + name);
    const std::string good = base::read_file(file);
    for (const size_t size : {size_t{0}, good.size() / 2, good.size() - 1}) {
      write(file, good.substr(0, size));
      expect_seen(file);
    }
    for (const size_t place : {size_t{0}, good.size() / 3, good.size() - 1}) {
      std::string damaged = good;
      damaged[place] = static_cast<char>(damaged[place] ^ 4);
      write(file, damaged);
      expect_seen(file);
    }
    write(file, good + "x");
    expect_seen(file);
    std::filesystem::remove(file);
    if (name != "manifest.json") {
      EXPECT_EQ(load_newest(folder_.path(), alone_), 1);
    }
    write(file, good);
    ASSERT_EQ(load_newest(folder_.path(), alone_), 2);
  }
}

TEST_F(Corruption, OfAllOfThemIsAnErrorOnEveryRank) {
  for (const char* step : {"step-00000001", "step-00000002"}) {
    std::filesystem::resize_file(
        folder_.at(std::string(step) + "/shard-00001-of-00002.safetensors"), 5000);
  }
  testing_support::run_ranks(3,
                             [](Group& group) {
                               try {
                                 find_checkpoint(rank_argument(), group);
                                 ADD_FAILURE() << "found one";
                               } catch (const IoError& error) {
                                 EXPECT_THAT(error.what(),
                                             HasSubstr("none of its 2 checkpoints verifies"));
                                 EXPECT_THAT(error.what(), HasSubstr("5000 bytes, and "));
                               }
                               // A run that begins anew leaves alone what it cannot read, and goes
                               // on behind it.
                               CheckpointWriter writer(rank_argument(), group);
                               EXPECT_TRUE(save(writer, 3));
                               EXPECT_EQ(load_newest(rank_argument(), group), 3);
                             },
                             {.argument = folder_.path()});
}

TEST_F(Corruption, AManifestThatIsGoneIsSeen) {
  std::filesystem::remove(folder_.at("step-00000002/manifest.json"));
  const Warnings warnings;
  EXPECT_EQ(load_newest(folder_.path(), alone_), 1);
  EXPECT_THAT(warnings.text(), HasSubstr("manifest.json"));
}

}  // namespace
}  // namespace lockstep

// What a save does to a folder beside its own files: nothing. Places that cannot be written to, or
// belong to another run, are refused before anything is saved.

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/unique_fd.h"
#include "checkpoint/checkpoint_state.h"
#include "checkpoint_files/owner.h"
#include "checkpoint_files/points.h"
#include "support/fleet.h"
#include "support/refusal.h"
#include "support/refused_calls.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using test::load_newest;
using test::names_in;
using test::refusal;
using test::refuse_call;
using test::save;
using test::TempFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using testing_support::die_now;
using testing_support::rank_argument;
using testing_support::run_ranks;

TEST(FolderOfCheckpoints, KeepsTheFilesOfOthers) {
  const TempFolder folder;
  std::filesystem::create_directories(folder.at("step-by-step"));
  std::filesystem::create_directories(folder.at(".step-00000009.part"));
  folder.file("step-by-step/README.md", "mine");
  folder.file("step-5000.pt", "mine");
  folder.file(".step-00000009.part/notes.txt", "mine");
  folder.file(".step-00000009.part/shard-00000-of-00001.safetensors", "of a killed save");
  Group alone = make_single_group();
  CheckpointWriter writer(folder.path(), alone, {.keep_last = 1});
  EXPECT_TRUE(save(writer, 1).committed);
  std::filesystem::create_directories(folder.at("step-00000001/exported"));
  folder.file("step-00000001/exported/model.safetensors", "mine");
  EXPECT_TRUE(save(writer, 1).committed) << "again";
  EXPECT_EQ(load_newest(folder.path(), alone), 1);
  EXPECT_TRUE(save(writer, 2).committed);
  EXPECT_EQ(load_newest(folder.path(), alone), 2);
  EXPECT_THAT(names_in(folder.path()),
              ElementsAre(".step-00000009.part", "latest", "step-00000001", "step-00000002",
                          "step-5000.pt", "step-by-step"));
  EXPECT_THAT(names_in(folder.at("step-00000001")), ElementsAre("exported"));
  EXPECT_THAT(names_in(folder.at(".step-00000009.part")), ElementsAre("notes.txt"));
  EXPECT_EQ(verify_checkpoints(folder.path()).size(), 1u) << "a folder of others is no checkpoint";
}

TEST(FolderOfCheckpoints, RefusesToReplaceALatestOrBestOfOthers) {
  Group alone = make_single_group();
  const auto refused = [&](const TempFolder& folder) {
    return refusal([&] { CheckpointWriter(folder.path(), alone, {}); });
  };
  for (const std::string name : {"latest", "best"}) {
    const TempFolder folder;
    { EXPECT_TRUE(save(*std::make_unique<CheckpointWriter>(folder.path(), alone), 1).committed); }
    { EXPECT_TRUE(save(*std::make_unique<CheckpointWriter>(folder.path(), alone), 2).committed); }
    folder.file(name, "what I think of it\n");
    EXPECT_THAT(refused(folder),
                AllOf(HasSubstr("has not written " + folder.at(name)), HasSubstr("move it away")));
    EXPECT_EQ(base::read_file(folder.at(name)), "what I think of it\n");
    EXPECT_EQ(names_in(folder.path()).size(), name == "latest" ? 3u : 4u) << "no record is left";
    folder.file(name, std::string(100'000, 'x'));
    EXPECT_THAT(refused(folder), HasSubstr(folder.at(name)));
    std::filesystem::remove(folder.at(name));
    std::filesystem::create_directory_symlink("step-00000001", folder.at(name));
    EXPECT_THAT(refused(folder), HasSubstr(folder.at(name)));
    std::filesystem::remove(folder.at(name));
    std::filesystem::create_directories(folder.at(name));
    EXPECT_THAT(refused(folder), HasSubstr(folder.at(name)));
  }
}

// A run that ends while another waits for a sign of it saves once more, and gives the place up.
TEST(FolderOfCheckpoints, CountsWhatWasSavedWhileItWaitedForThePlace) {
  const TempFolder folder, elsewhere;
  Group alone = make_single_group();
  {
    CheckpointWriter writer(elsewhere.path(), alone);
    ASSERT_TRUE(save(writer, 7).committed);
    auto record =
        nlohmann::json::parse(base::read_file(elsewhere.at(checkpoint_files::kOwnerFile)));
    record["boot"] = "of another host";
    folder.file(checkpoint_files::kOwnerFile, record.dump());
  }
  log::set_sink([&](log::Level, std::string_view line) {
    if (line.find("for a sign of it") != line.npos) {
      std::filesystem::rename(elsewhere.at("step-00000007"), folder.at("step-00000007"));
      std::filesystem::remove(folder.at(checkpoint_files::kOwnerFile));
    }
  });
  {
    CheckpointWriter writer(folder.path(), alone);
    EXPECT_TRUE(save(writer, 3).committed);
  }
  log::set_sink({});
  EXPECT_EQ(load_newest(folder.path(), alone), 3) << "the last that was saved";
}

TEST(FolderOfCheckpoints, AStepIsReplacedWhereRenameKnowsNoFlags) {
  const TempFolder folder;
  std::thread([&] {
    // As NFS and Lustre do: with any flags.
    refuse_call(SYS_renameat2, EINVAL, test::ArgumentRule{.index = 4, .value = 0, .is = false});
    Group alone = make_single_group();
    CheckpointWriter writer(folder.path(), alone);
    for (int round = 0; round < 3; ++round) {
      const SaveResult result = save(writer, 7);
      EXPECT_TRUE(result.committed) << result.error;
      EXPECT_EQ(load_newest(folder.path(), alone), 7);
    }
  }).join();
  EXPECT_THAT(names_in(folder.path()), ElementsAre("latest", "step-00000007"));
  EXPECT_THAT(names_in(folder.at("step-00000007")),
              ElementsAre("manifest.json", "shard-00000-of-00001-save-3.safetensors"));
}

// Between the shards and the manifest of a second save of a step the first one is still whole.
TEST(FolderOfCheckpoints, AKillWhileAStepIsReplacedLeavesTheOldOne) {
  const TempFolder folder;
  run_ranks(2,
            [](Group& group) {
              CheckpointWriter writer(rank_argument(), group);
              EXPECT_TRUE(save(writer, 7).committed);
              group.barrier();
              checkpoint_files::save_observer = [](checkpoint_files::SavePoint point) {
                if (point == checkpoint_files::SavePoint::ShardsMoved) {
                  die_now();
                }
              };
              EXPECT_FALSE(save(writer, 7).committed);
            },
            {.argument = folder.path(), .dies = {0}});
  Group alone = make_single_group();
  EXPECT_EQ(load_newest(folder.path(), alone), 7);
  CheckpointWriter writer(folder.path(), alone);
  EXPECT_TRUE(save(writer, 7).committed);
  EXPECT_EQ(load_newest(folder.path(), alone), 7);
  EXPECT_EQ(names_in(folder.at("step-00000007")).size(), 2u) << "nothing is left of the killed one";
}

TEST(CheckpointWriter, APlaceThatCannotBeWrittenIsRefusedOnAllRanks) {
  const TempFolder folder;
  run_ranks(2,
            [](Group& group) {
              EXPECT_THAT([&] { CheckpointWriter(rank_argument(), group); },
                          ThrowsMessage<IoError>(HasSubstr("cannot make the folder")));
              EXPECT_THAT([&] { CheckpointWriter("/proc", group); },
                          ThrowsMessage<IoError>(AllOf(HasSubstr("cannot write to /proc"),
                                                       HasSubstr("choose a checkpoint.dir"))));
            },
            {.argument = folder.file("file", "in the way") + "/checkpoints"});
}

TEST(CheckpointWriter, ASecondRunInAFolderIsRefusedOnAllRanks) {
  const TempFolder folder;
  Group alone = make_single_group();
  std::optional<CheckpointWriter> writer(std::in_place, folder.path(), alone);
  EXPECT_TRUE(save(*writer, 1).committed);
  run_ranks(2,
            [](Group& group) {
              EXPECT_THAT(refusal([&] { CheckpointWriter(rank_argument(), group); }),
                          AllOf(HasSubstr("is in use"), HasSubstr("a checkpoint.dir of its own")));
            },
            {.argument = folder.path()});
  EXPECT_TRUE(save(*writer, 2).committed);
  writer.reset();
  EXPECT_TRUE(save(writer.emplace(folder.path(), alone), 3).committed);
}

TEST(CheckpointWriter, OldCheckpointsAreNotMixedWithNewOnes) {
  const TempFolder folder;
  Group alone = make_single_group();
  const CheckpointOptions fresh{.allow_existing = false};
  {
    CheckpointWriter writer(folder.path(), alone, fresh);
    save(writer, 1);
    save(writer, 2);
  }
  EXPECT_THAT(refusal([&] { CheckpointWriter(folder.path(), alone, fresh); }),
              AllOf(HasSubstr("holds 2 checkpoints already"), HasSubstr("step-00000002"),
                    HasSubstr("checkpoint.resume = true")));
}

// One that a disk has damaged does not count among those that are kept.
TEST(Retention, ADamagedCheckpointDisplacesNone) {
  const TempFolder folder;
  Group alone = make_single_group();
  {
    CheckpointWriter writer(folder.path(), alone);
    for (const int64_t step : {1, 2, 3}) {
      save(writer, step);
    }
  }
  const std::string shard = folder.at("step-00000002/shard-00000-of-00001.safetensors");
  const base::UniqueFd fd = base::open_file(shard, O_WRONLY);
  ASSERT_EQ(::pwrite(fd.get(), "?", 1, 100'000), 1);
  const test::Warnings warnings;
  CheckpointWriter writer(folder.path(), alone);
  EXPECT_TRUE(save(writer, 4).committed);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("latest", "step-00000001", "step-00000002",
                                                   "step-00000003", "step-00000004"));
  EXPECT_THAT(warnings.text(), HasSubstr("step-00000002 is damaged and counts for nothing"));
  EXPECT_TRUE(save(writer, 5).committed);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("latest", "step-00000002", "step-00000003",
                                                   "step-00000004", "step-00000005"));
}

}  // namespace
}  // namespace lockstep

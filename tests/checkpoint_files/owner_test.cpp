// One run at a time writes to a place, and a dead one stands in nobody's way.

#include "checkpoint_files/owner.h"

#include <atomic>
#include <filesystem>
#include <signal.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/unique_fd.h"
#include "support/refusal.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using test::refusal;
using test::TempFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr checkpoint_files::OwnerTimes kShort{.beat = milliseconds(20),
                                              .patience = milliseconds(200)};

std::string record_in(const TempFolder& folder) {
  return folder.at(checkpoint_files::kOwnerFile);
}

// The record of a host that has another start than this one, so that only its beat tells.
void make_foreign(const std::string& path) {
  auto record = nlohmann::json::parse(base::read_file(path));
  record["boot"] = "another";
  record["token"] = "of another run";
  record["host"] = "node7";
  base::write_file_atomically(path, record.dump());
}

// Leaves a record behind, as a run that was killed does.
void leave_record(const std::string& folder) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto owner = checkpoint_files::claim_place(folder);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
}

TEST(PlaceOwner, RefusesASecondRunAndSaysWhoHasIt) {
  const TempFolder folder;
  {
    const auto owner = checkpoint_files::claim_place(folder.path());
    EXPECT_THAT(refusal([&] { checkpoint_files::claim_place(folder.path()); }),
                AllOf(HasSubstr(folder.path() + " is in use"),
                      HasSubstr("pid " + std::to_string(::getpid()) + " on "),
                      HasSubstr("a checkpoint.dir of its own"), HasSubstr(record_in(folder))));
    owner->check();
  }
  EXPECT_FALSE(std::filesystem::exists(record_in(folder)));
  checkpoint_files::claim_place(folder.path())->check();
}

// What other hosts go by.
TEST(PlaceOwner, ARunThatLivesChangesItsRecord) {
  const TempFolder folder;
  const auto owner = checkpoint_files::claim_place(folder.path(), kShort);
  const std::string first = base::read_file(record_in(folder));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (base::read_file(record_in(folder)) == first && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  EXPECT_NE(base::read_file(record_in(folder)), first);
}

TEST(PlaceOwner, ALinkThatSomebodyPlantedIsNotWrittenThrough) {
  const TempFolder folder;
  const std::string victim = folder.file("victim", "");
  std::filesystem::create_symlink(victim, record_in(folder));
  EXPECT_THROW(checkpoint_files::claim_place(folder.path()), IoError);
  EXPECT_EQ(base::read_file(victim), "");
}

TEST(PlaceOwner, TakesAtOnceWhatAKilledRunLeft) {
  const TempFolder folder;
  leave_record(folder.path());
  ASSERT_TRUE(std::filesystem::exists(record_in(folder)));
  checkpoint_files::claim_place(folder.path())
      ->check();  // with its patience of half a minute untouched
}

TEST(PlaceOwner, WaitsForASignOfARunOnAnotherHost) {
  const TempFolder folder;
  leave_record(folder.path());
  make_foreign(record_in(folder));
  std::atomic<bool> is_over = false;
  std::thread other([&] {  // it lives
    for (int beat = 0; !is_over; ++beat) {
      auto record = nlohmann::json::parse(base::read_file(record_in(folder)));
      record["beat"] = beat;
      base::write_file_atomically(record_in(folder), record.dump());
      std::this_thread::yield();
    }
  });
  const std::string said = refusal([&] { checkpoint_files::claim_place(folder.path(), kShort); });
  is_over = true;
  other.join();
  EXPECT_THAT(said, HasSubstr("on node7"));
  checkpoint_files::claim_place(folder.path(), kShort)->check();  // now it does not
}

TEST(PlaceOwner, TakesAPlaceThatIsGivenUpWhileItWaits) {
  const TempFolder folder;
  leave_record(folder.path());
  make_foreign(record_in(folder));
  int num_waits = 0;
  log::set_sink([&](log::Level, std::string_view line) {
    if (line.find("for a sign of it") != line.npos) {
      ++num_waits;
      std::filesystem::remove(record_in(folder));  // as a run does that ends
    }
  });
  {
    const auto owner = checkpoint_files::claim_place(folder.path(), kShort);
    owner->check();
    EXPECT_THAT(refusal([&] { checkpoint_files::claim_place(folder.path()); }),
                HasSubstr("is in use"));
  }
  log::set_sink({});
  EXPECT_EQ(num_waits, 1);
  EXPECT_FALSE(std::filesystem::exists(record_in(folder)));
}

TEST(PlaceOwner, SeesThatAnotherHasTakenOver) {
  const TempFolder folder;
  const auto owner = checkpoint_files::claim_place(folder.path(), kShort);
  make_foreign(record_in(folder));
  EXPECT_THAT([&] { owner->check(); },
              ThrowsMessage<IoError>(AllOf(HasSubstr("taken by another run"), HasSubstr("node7"))));
}

TEST(PlaceOwner, SurvivesThatTheFolderIsCleared) {
  const TempFolder folder;
  const auto owner = checkpoint_files::claim_place(folder.path(), kShort);
  std::filesystem::remove(record_in(folder));
  owner->check();
  EXPECT_THAT(refusal([&] { checkpoint_files::claim_place(folder.path()); }),
              HasSubstr("is in use"));
}

TEST(PlaceOwner, LeavesNoEmptyFolders) {
  const TempFolder folder;
  checkpoint_files::claim_place(folder.at("a/b/c"))->check();
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  {
    const auto owner = checkpoint_files::claim_place(folder.at("a/b"));
    folder.file("a/kept", "");
  }
  EXPECT_FALSE(std::filesystem::exists(folder.at("a/b")));
  EXPECT_TRUE(std::filesystem::exists(folder.at("a/kept")));
}

TEST(PlaceOwner, SaysWhereNothingCanBeWritten) {
  const TempFolder folder;
  folder.file("file", "in the way");
  EXPECT_THAT([&] { checkpoint_files::claim_place(folder.at("file/checkpoints")); },
              ThrowsMessage<IoError>(HasSubstr("cannot make the folder")));
  EXPECT_THAT([] { checkpoint_files::claim_place("/proc"); },
              ThrowsMessage<IoError>(HasSubstr("cannot write to /proc")));
}

}  // namespace
}  // namespace lockstep

// What a power cut may not undo: every file and every folder is synced before the next step counts
// on it. The calls of a save are noted in the order in which they come.

#include <algorithm>
#include <cerrno>
#include <climits>
#include <fcntl.h>
#include <span>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/atomic_file.h"
#include "base/unique_fd.h"
#include "checkpoint_files/place.h"
#include "support/temp_folder.h"

namespace lockstep {

namespace {

using ::testing::ElementsAre;

std::vector<std::string>* noted = nullptr;  // null: nobody asks
std::string noted_folder;                   // names are told from here
int num_interruptions = 0;                  // of the next calls of fallocate()

std::string short_name(const std::string& path) {
  return path.starts_with(noted_folder) ? "." + path.substr(noted_folder.size()) : path;
}

void note(const std::string& call) {
  if (noted != nullptr) {
    noted->push_back(call);
  }
}

std::string name_of(int fd) {
  char path[PATH_MAX];
  const ssize_t size = ::readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), path, sizeof path);
  return short_name(std::string(path, static_cast<size_t>(std::max<ssize_t>(size, 0))));
}

// Notes calls while it lives.
class Notes {
 public:
  explicit Notes(const std::string& folder) {
    noted_folder = folder;
    noted = &calls;
  }
  ~Notes() { noted = nullptr; }
  Notes(const Notes&) = delete;

  std::vector<std::string> calls;
};

std::vector<std::string> calls_of_a_save(const test::TempFolder& folder, uint64_t sequence) {
  const auto place = checkpoint_files::make_folder_place(folder.path());
  const checkpoint_files::SavePlan save{.step = 7, .sequence = sequence, .bytes = 5};
  const Notes notes(folder.path());
  place->prepare(save);
  const auto shard = place->open_shard(save, place->shard_file(save, 0, 1), 5);
  shard->append(std::as_bytes(std::span("12345", 5)));
  shard->finish();
  place->commit(save, "{}");
  place->point("latest", "step-00000007");
  return notes.calls;
}

TEST(Sync, ACheckpointIsOnTheDiskBeforeItIsThereAndItsNameAfter) {
  const test::TempFolder folder;
  const auto calls = calls_of_a_save(folder, 1);
  ASSERT_EQ(calls.size(), 8u) << ::testing::PrintToString(calls);
  EXPECT_THAT(std::vector(calls.begin(), calls.begin() + 5),
              ElementsAre("sync ./.step-00000007.part/shard-00000-of-00001.safetensors",
                          "sync ./.step-00000007.part/manifest.json", "sync ./.step-00000007.part",
                          "rename ./.step-00000007.part to ./step-00000007", "sync ."));
  EXPECT_THAT(calls[5], ::testing::StartsWith("sync ./latest."));
  EXPECT_THAT(calls[6], ::testing::EndsWith(" to ./latest"));
  EXPECT_EQ(calls[7], "sync .");
}

TEST(Sync, AReplacedCheckpointIsWholeAtEveryMoment) {
  const test::TempFolder folder;
  calls_of_a_save(folder, 1);
  const auto calls = calls_of_a_save(folder, 2);
  const std::string shard = "shard-00000-of-00001-save-2.safetensors";
  ASSERT_EQ(calls.size(), 11u) << ::testing::PrintToString(calls);
  EXPECT_THAT(
      std::vector(calls.begin(), calls.begin() + 8),
      ElementsAre("sync ./.step-00000007.part/" + shard, "sync ./.step-00000007.part/manifest.json",
                  "sync ./.step-00000007.part",
                  fmt::format("rename ./.step-00000007.part/{0} to ./step-00000007/{0}", shard),
                  "sync ./step-00000007",
                  "rename ./.step-00000007.part/manifest.json to "
                  "./step-00000007/manifest.json",
                  "sync ./step-00000007", "sync ."));
}

TEST(Sync, AFileThatAppearsWholeIsOnTheDisk) {
  const test::TempFolder folder;
  const Notes notes(folder.path());
  base::write_file_atomically(folder.at("text"), "hello");
  base::AtomicFile file(folder.at("large"));
  file.append("hello");
  file.commit();
  ASSERT_EQ(notes.calls.size(), 6u) << ::testing::PrintToString(notes.calls);
  for (const size_t first : {size_t{0}, size_t{3}}) {
    EXPECT_THAT(notes.calls[first], ::testing::StartsWith("sync ./"));
    EXPECT_THAT(notes.calls[first + 1], ::testing::StartsWith("rename ./"));
    EXPECT_EQ(notes.calls[first + 2], "sync .");
  }
}

TEST(Sync, ASignalWhileRoomIsTakenCostsNothing) {
  const test::TempFolder folder;
  num_interruptions = 2;
  const auto file = checkpoint_files::make_direct_file(folder.at("shard"), 5);
  EXPECT_EQ(num_interruptions, 0);
  file->append(std::as_bytes(std::span("12345", 5)));
  file->finish();
  EXPECT_EQ(base::read_file(folder.at("shard")), "12345");
}

}  // namespace
}  // namespace lockstep

// In libc's place.
extern "C" {

int fsync(int fd) {
  lockstep::note("sync " + lockstep::name_of(fd));
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

int rename(const char* from, const char* to) noexcept {
  lockstep::note(
      fmt::format("rename {} to {}", lockstep::short_name(from), lockstep::short_name(to)));
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (lockstep::num_interruptions > 0) {
    --lockstep::num_interruptions;
    errno = EINTR;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, bytes));
}
}

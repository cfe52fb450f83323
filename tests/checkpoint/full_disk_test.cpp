// A disk without room: told with figures on every rank, nothing is left, and what was there stays.

#include <cerrno>
#include <exception>
#include <fcntl.h>
#include <filesystem>
#include <sched.h>
#include <sys/mount.h>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/unique_fd.h"
#include "checkpoint/checkpoint_state.h"
#include "support/fleet.h"
#include "support/service.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using test::names_in;
using test::TempFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::rank_argument;

// Why this process cannot have mounts of its own, if it cannot.
std::optional<std::string> mounts_refusal() {
  std::optional<std::string> refusal;
  std::thread([&] {
    if (::unshare(CLONE_NEWNS) != 0) {
      refusal = "no mount namespace: " + base::errno_text(errno);
    }
  }).join();
  return refusal;
}

std::string mounts_of(int64_t pid, int64_t thread) {
  return fmt::format("/proc/{}/task/{}/ns/mnt", pid, thread);
}

std::vector<int64_t> numbers(Group& group, int64_t number) {
  const at::Tensor all = at::zeros({group.size()}, at::kLong);
  group.all_gather(all, at::full({1}, number, at::kLong));
  const auto* data = all.const_data_ptr<int64_t>();
  return {data, data + group.size()};
}

// Rank 0 mounts a small disk that only it and the others see, gone with the last of their threads.
void enter_small_disk(Group& group, const std::string& folder) {
  if (group.rank() == 0) {
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0) << base::errno_text(errno);
    ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0)
        << base::errno_text(errno);
    ASSERT_EQ(::mount("none", folder.c_str(), "tmpfs", 0, "size=4m"), 0) << base::errno_text(errno);
  }
  const int64_t pid = numbers(group, ::getpid())[0];
  const int64_t thread = numbers(group, ::gettid())[0];
  if (group.rank() != 0) {
    const base::UniqueFd mounts = base::open_file(mounts_of(pid, thread), O_RDONLY);
    ASSERT_EQ(::unshare(CLONE_FS), 0) << base::errno_text(errno);
    ASSERT_EQ(::setns(mounts.get(), CLONE_NEWNS), 0) << base::errno_text(errno);
  }
  group.barrier();
}

SaveResult save_bytes(CheckpointWriter& writer, int64_t step, int64_t bytes) {
  writer.begin({.step = step}, {{"w", at::full({bytes}, step, at::kByte)}});
  writer.wait();
  return writer.take_results().at(0);
}

void save_on_small_disk(Group& group, const std::string& folder) {
  CheckpointWriter writer(folder, group);
  EXPECT_TRUE(save_bytes(writer, 1, 1 << 20).committed);
  const SaveResult failed = save_bytes(writer, 2, 8 << 20);
  EXPECT_FALSE(failed.committed);
  EXPECT_THAT(failed.error, HasSubstr("no space for checkpoint step 2, 8.4 MB needed, 3.1 MB free "
                                      "in " +
                                      folder));
  EXPECT_THAT(names_in(folder), ElementsAre("latest", "step-00000001"));
  group.barrier();
  const SaveResult next = save_bytes(writer, 3, 1 << 20);
  EXPECT_TRUE(next.committed) << next.error;
  for (const CheckpointCheck& check : verify_checkpoints(folder)) {
    EXPECT_EQ(check.problem, "");
  }
  EXPECT_EQ(find_checkpoint(folder, group)->info().step, 3);
  group.barrier();
}

TEST(FullDisk, IsToldAndHarmsNothing) {
  LOCKSTEP_NEEDS("namespaces", mounts_refusal());
  const TempFolder folder;
  testing_support::run_ranks(2,
                             [](Group& group) {
                               std::exception_ptr error;
                               std::thread([&] {  // of its own: the mounts are its thread's
                                 try {
                                   enter_small_disk(group, rank_argument());
                                   save_on_small_disk(group, rank_argument());
                                 } catch (...) {
                                   error = std::current_exception();
                                 }
                               })
                                   .join();
                               if (error) {
                                 std::rethrow_exception(error);
                               }
                             },
                             {.argument = folder.path()});
  EXPECT_TRUE(names_in(folder.path()).empty());
}

}  // namespace
}  // namespace lockstep

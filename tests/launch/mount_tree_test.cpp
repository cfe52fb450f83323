// Paths inside a root: whatever links say, nothing leads out of it.

#include "launch/mount_tree.h"

#include <cerrno>
#include <cstddef>
#include <fcntl.h>
#include <filesystem>
#include <iterator>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/temp_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class InRoot : public ::testing::Test {
 protected:
  InRoot() {
    fs::create_directories(root_ + "/srv/data/deep");
    fs::create_directories(folder_.at("srv/outside"));
    folder_.file("root/srv/data/file", "in");
    fs::create_symlink("/srv/data", root_ + "/absolute");
    fs::create_symlink("../../../../srv", root_ + "/above");
    fs::create_symlink("absolute/deep", root_ + "/chain");
    fs::create_symlink("loop", root_ + "/loop");
    fs::create_symlink(folder_.at("srv/outside"), root_ + "/escape");
    fs::create_symlink("../file", root_ + "/srv/data/deep/up");
    fs::create_symlink("/srv/data", root_ + "/srv/data/deep/home");
  }

  const test::TempFolder folder_;
  const std::string root_ = folder_.at("root");
};

TEST_F(InRoot, WithoutOpenat2PathsLeadToTheSamePlaces) {
  const UniqueFd root = open_file(root_, O_PATH | O_DIRECTORY);
  for (const char* path :
       {"/", "", ".", "/srv/data", "srv//data/./file", "/absolute/file", "/above/data/file",
        "/chain/up", "/chain/../deep/up", "/chain/home/file", "/../../srv", "/loop", "/escape",
        "/escape/x", "/none", "/srv/data/file/x", "/absolute/../../../../srv/data"}) {
    const UniqueFd by_kernel = open_in_root(root.get(), path);
    const int kernels = errno;
    const UniqueFd by_steps = walk_in_root(root.get(), path);
    if (std::string(path).empty()) {
      continue;  // the kernel wants a path; here it is the root
    }
    ASSERT_EQ(static_cast<bool>(by_kernel), static_cast<bool>(by_steps)) << path;
    if (by_kernel) {
      const auto place = [](const UniqueFd& fd) {
        return fs::read_symlink("/proc/self/fd/" + std::to_string(fd.get()));
      };
      EXPECT_EQ(place(by_kernel), place(by_steps)) << path;
    } else {
      EXPECT_EQ(kernels, errno) << path;
    }
  }
}

// As a kernel before 5.6, or a container's filter, answers this thread from now on.
void forbid_openat2(uint32_t answer) {
  sock_filter rules[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | answer),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{.len = std::size(rules), .filter = rules};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0) << errno_text(errno);
}

TEST_F(InRoot, WithoutOpenat2TheStepsAreTaken) {
  for (const uint32_t answer : {ENOSYS, EPERM}) {
    std::thread([&] {
      forbid_openat2(answer);
      EXPECT_NO_THROW({
        EXPECT_EQ(path_in_root(root_, "/chain/up"), root_ + "/srv/data/file");
        EXPECT_EQ(path_in_root(root_, "/absolute/new"), root_ + "/srv/data/new");
      });
    }).join();
  }
}

TEST_F(InRoot, ADanglingLinkIsNamedWithWhereItLeads) {
  EXPECT_EQ(path_in_root(root_, "/absolute/new/folder"), root_ + "/srv/data/new/folder");
  for (const char* path : {"/escape", "/escape/new"}) {
    try {
      path_in_root(root_, path);
      ADD_FAILURE() << path;
    } catch (const IoError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("is a link to something that is not there"),
                                      HasSubstr("leads to " + folder_.at("srv/outside"))));
    }
  }
}

}  // namespace
}  // namespace lockstep

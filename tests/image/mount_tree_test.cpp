// Paths inside a root: whatever links say, nothing leads out of it.

#include "image/mount_tree.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/syscall.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/refused_calls.h"
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
  const base::UniqueFd root = base::open_file(root_, O_PATH | O_DIRECTORY);
  for (const char* path :
       {"/", "", ".", "/srv/data", "srv//data/./file", "/absolute/file", "/above/data/file",
        "/chain/up", "/chain/../deep/up", "/chain/home/file", "/../../srv", "/loop", "/escape",
        "/escape/x", "/none", "/srv/data/file/x", "/absolute/../../../../srv/data"}) {
    const base::UniqueFd by_kernel = image::open_in_root(root.get(), path);
    const int kernels = errno;
    const base::UniqueFd by_steps = image::walk_in_root(root.get(), path);
    if (std::string(path).empty()) {
      continue;  // the kernel wants a path; here it is the root
    }
    ASSERT_EQ(static_cast<bool>(by_kernel), static_cast<bool>(by_steps)) << path;
    if (by_kernel) {
      const auto place = [](const base::UniqueFd& fd) {
        return fs::read_symlink("/proc/self/fd/" + std::to_string(fd.get()));
      };
      EXPECT_EQ(place(by_kernel), place(by_steps)) << path;
    } else {
      EXPECT_EQ(kernels, errno) << path;
    }
  }
}

// As a kernel before 5.6 answers, or a container's filter.
TEST_F(InRoot, WithoutOpenat2TheStepsAreTaken) {
  for (const uint32_t answer : {ENOSYS, EPERM}) {
    std::thread([&] {
      test::refuse_call(SYS_openat2, answer);
      EXPECT_NO_THROW({
        EXPECT_EQ(image::path_in_root(root_, "/chain/up"), root_ + "/srv/data/file");
        EXPECT_EQ(image::path_in_root(root_, "/absolute/new"), root_ + "/srv/data/new");
      });
    }).join();
  }
}

TEST_F(InRoot, ADanglingLinkIsNamedWithWhereItLeads) {
  EXPECT_EQ(image::path_in_root(root_, "/absolute/new/folder"), root_ + "/srv/data/new/folder");
  for (const char* path : {"/escape", "/escape/new"}) {
    try {
      image::path_in_root(root_, path);
      ADD_FAILURE() << path;
    } catch (const IoError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("is a link to something that is not there"),
                                      HasSubstr("leads to " + folder_.at("srv/outside"))));
    }
  }
}

}  // namespace
}  // namespace lockstep

#include "base/process/memory_limit.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class MemoryLimits : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "lockstep-test-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(root_); }

  void file(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  // In version 2, of one group.
  void group(const std::string& path, const std::string& limit, const std::string& used) const {
    file("/sys/fs/cgroup" + path + "/memory.max", limit + "\n");
    file("/sys/fs/cgroup" + path + "/memory.current", used + "\n");
  }

  std::optional<uint64_t> left() const { return base::memory_left_in_cgroups(root_); }

  std::string root_;
};

TEST_F(MemoryLimits, WhatIsLeftBeforeTheNearestLimit) {
  EXPECT_EQ(left(), std::nullopt);
  file("/proc/self/cgroup", "0::/slurm/job_7/step_0\n");
  EXPECT_EQ(left(), std::nullopt);
  group("/slurm/job_7/step_0", "max", "700");
  EXPECT_EQ(left(), std::nullopt);
  group("/slurm/job_7", "64000", "1000");
  EXPECT_EQ(left(), 63000u);
  group("/slurm", "80000", "40000");
  EXPECT_EQ(left(), 40000u) << "a group above may be nearer to its limit";
  group("/slurm/job_7/step_0", "900", "950");
  EXPECT_EQ(left(), 0u);
}

// A job that has read its data has filled its group with them.
TEST_F(MemoryLimits, FilesThatTheKernelCanDropCountAsFree) {
  file("/proc/self/cgroup", "0::/job\n");
  group("/job", "64000", "63500");
  EXPECT_EQ(left(), 500u);
  file("/sys/fs/cgroup/job/memory.stat", "anon 1000\nfile 62000\ninactive_file 60000\n");
  EXPECT_EQ(left(), 60500u);
  file("/sys/fs/cgroup/job/memory.stat", "inactive_file 99000\n");  // read a moment later
  EXPECT_EQ(left(), 64000u);
}

TEST_F(MemoryLimits, Version1) {
  file("/proc/self/cgroup", "4:cpu,cpuacct:/job\n3:memory:/job\n");
  file("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5000\n");
  file("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "4000\n");
  file("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 300\n");
  EXPECT_EQ(left(), 1300u);
}

// In a container the path is the host's and the files are at the top.
TEST_F(MemoryLimits, InAContainerItIsTheRoots) {
  file("/proc/self/cgroup", "0::/kubepods/pod1\n");
  group("", "2000", "1500");
  EXPECT_EQ(left(), 500u);
}

}  // namespace
}  // namespace lockstep

#include "base/process/cpu_quota.h"

#include <filesystem>
#include <fstream>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class CpuQuotas : public ::testing::Test {
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

  std::string root_;
};

TEST_F(CpuQuotas, WholeCoresOfTheLowestGroupCount) {
  EXPECT_EQ(base::cpu_quota(root_).num_cores, 0) << "no limit";
  file("/proc/self/cgroup", "0::/pod/rank\n");
  file("/sys/fs/cgroup/pod/rank/cpu.max", "800000 100000\n");
  file("/sys/fs/cgroup/pod/cpu.max", "250000 100000\n");
  EXPECT_EQ(base::cpu_quota(root_).num_cores, 2);
  file("/sys/fs/cgroup/pod/rank/cpu.max", "30000 100000\n");
  EXPECT_EQ(base::cpu_quota(root_).num_cores, 1) << "less than a core is one";
}

TEST_F(CpuQuotas, ProcessesOfOneGroupShareItsLimit) {
  file("/proc/self/cgroup", "0::/pod/rank0\n");
  file("/sys/fs/cgroup/pod/rank0/cpu.max", "max 100000\n");
  file("/sys/fs/cgroup/pod/cpu.max", "400000 100000\n");
  const base::CpuQuota one = base::cpu_quota(root_);
  file("/proc/self/cgroup", "0::/pod/rank1\n");
  const base::CpuQuota other = base::cpu_quota(root_);
  EXPECT_EQ(one.group, other.group);
  file("/sys/fs/cgroup/pod/rank1/cpu.max", "100000 100000\n");
  EXPECT_NE(base::cpu_quota(root_).group, one.group);
}

TEST(CoresWithin, QuotasOfDifferentGroupsAddUpAndNoneLiftsThem) {
  const base::CpuQuota none, two{.num_cores = 2, .group = 7}, also_two{.num_cores = 2, .group = 7},
      three{.num_cores = 3, .group = 8};
  EXPECT_EQ(base::cores_within(16, std::vector{two, also_two}), 2);
  EXPECT_EQ(base::cores_within(16, std::vector{two, three}), 5);
  EXPECT_EQ(base::cores_within(4, std::vector{two, three}), 4) << "there are no more";
  EXPECT_EQ(base::cores_within(16, std::vector{two, none}), 16);
  EXPECT_EQ(base::cores_within(0, std::vector{two}), 1);
  EXPECT_EQ(base::cores_within(16, {}), 16);
}

}  // namespace
}  // namespace lockstep

#include "doctor/doctor.h"

#include <fcntl.h>
#include <filesystem>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/process/cpu_quota.h"
#include "base/unique_fd.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

// A made-up machine: files under a folder that plays "/".
class Doctor : public ::testing::Test {
 protected:
  Doctor() {
    std::string name = (fs::temp_directory_path() / "lockstep-doctor-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  ~Doctor() override { fs::remove_all(root_); }

  std::string file(const std::string& path, const std::string& text, int mode = 0644) {
    const std::string full = root_ + path;
    fs::create_directories(fs::path(full).parent_path());
    const base::UniqueFd fd = base::open_file(full, O_WRONLY | O_CREAT | O_TRUNC, mode);
    base::write_all(fd.get(), text.data(), text.size());
    return full;
  }

  std::string script(const std::string& text) {
    return file("/script", "#!/bin/sh\n" + text, 0755);
  }

  std::string root_;
};

TEST_F(Doctor, Compiler) {
  EXPECT_EQ(doctor::check_compiler(script("echo 12.2.0")).status, doctor::CheckStatus::Ok);
  EXPECT_EQ(doctor::check_compiler(script("echo 9.4.0")).status, doctor::CheckStatus::Problem);
  EXPECT_EQ(doctor::check_compiler(script("echo nonsense")).status, doctor::CheckStatus::Problem);
  EXPECT_EQ(doctor::check_compiler("/no/such/compiler").status, doctor::CheckStatus::Note);
}

TEST_F(Doctor, Torch) {
  const auto good =
      doctor::check_torch(script("echo lockstep 0.1.0; echo libtorch 2.11.0; echo 'Gloo yes'"));
  EXPECT_EQ(good[0].status, doctor::CheckStatus::Ok);
  EXPECT_EQ(good[0].found, "lockstep 0.1.0, libtorch 2.11.0");
  EXPECT_EQ(good[1].status, doctor::CheckStatus::Ok);
  const auto no_gloo = doctor::check_torch(script("echo libtorch 2.11.0"));
  EXPECT_EQ(no_gloo[1].status, doctor::CheckStatus::Problem);
  const auto broken = doctor::check_torch(
      script("echo 'libtorch_cpu.so: cannot open shared object' >&2; exit 127"));
  EXPECT_EQ(broken[0].status, doctor::CheckStatus::Problem);
  EXPECT_THAT(broken[0].found, HasSubstr("libtorch_cpu.so: cannot open shared object"));
  const auto missing = doctor::check_torch("/no/such/lockstep-torch");
  EXPECT_EQ(missing[0].status, doctor::CheckStatus::Problem);
  EXPECT_THAT(missing[0].found, HasSubstr("missing"));
  EXPECT_FALSE(missing[0].fix.empty());
}

TEST_F(Doctor, CudaToolkit) {
  EXPECT_THAT(doctor::check_cuda_toolkit("/no/nvcc").found, HasSubstr("none: fine"));
  EXPECT_THAT(
      doctor::check_cuda_toolkit(script("echo header; echo 'tools, release 13.0, V13'")).found,
      HasSubstr("release 13.0"));
}

TEST_F(Doctor, SharedMemory) {
  EXPECT_NE(doctor::check_shared_memory("/dev/shm").status, doctor::CheckStatus::Problem);
  EXPECT_EQ(doctor::check_shared_memory(root_ + "/none").status, doctor::CheckStatus::Note);
}

TEST_F(Doctor, CgroupVersionTwoCountsEveryLevel) {
  EXPECT_FALSE(base::cgroup_cpu_limit(root_).has_value());
  file("/proc/self/cgroup", "0::/a/b\n");
  EXPECT_FALSE(base::cgroup_cpu_limit(root_).has_value());
  file("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_FALSE(base::cgroup_cpu_limit(root_).has_value());
  file("/sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(base::cgroup_cpu_limit(root_).value(), 1.5);
  EXPECT_EQ(doctor::check_cores(root_, 8).status, doctor::CheckStatus::Note);
  EXPECT_EQ(doctor::check_cores(root_, 1).status, doctor::CheckStatus::Ok);
}

TEST_F(Doctor, CgroupVersionOne) {
  file("/proc/self/cgroup", "5:memory:/x\n4:cpuacct,cpu:/docker/x\n1:name=systemd:/\n");
  file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");  // as a container sees its own group
  file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(base::cgroup_cpu_limit(root_).value(), 2.0);
  file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  EXPECT_FALSE(base::cgroup_cpu_limit(root_).has_value());
}

TEST_F(Doctor, TornCgroupFilesAreNoLimit) {
  for (const char* text : {"", ":", "0:", "nonsense\n", "0::\n", "0::relative\n"}) {
    file("/proc/self/cgroup", text);
    EXPECT_FALSE(base::cgroup_cpu_limit(root_).has_value()) << text;
  }
}

TEST_F(Doctor, Memory) {
  EXPECT_EQ(doctor::check_memory(root_).status, doctor::CheckStatus::Note);
  file("/proc/meminfo",
       "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n");
  EXPECT_EQ(doctor::check_memory(root_).found, "16.0 GiB, 8.0 available");
  file("/proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388 kB\n");
  EXPECT_EQ(doctor::check_memory(root_).status, doctor::CheckStatus::Note);
}

TEST_F(Doctor, SharedMemoryThatCannotBeWrittenToIsNotOk) {
  constexpr int kCannotMount = 77;
  const pid_t child = ::fork();
  if (child == 0) {  // a mount namespace of its own
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", root_.c_str(), "tmpfs", MS_RDONLY, nullptr) != 0) {
      ::_exit(kCannotMount);
    }
    const doctor::CheckResult result = doctor::check_shared_memory(root_);
    ::_exit(result.status == doctor::CheckStatus::Note &&
                    result.found.find("Read-only file system") != std::string::npos &&
                    result.fix.find("remount,rw") != std::string::npos
                ? 0
                : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotMount) {
    GTEST_SKIP() << "needs the right to mount";
  }
  EXPECT_EQ(status, 0);
}

TEST_F(Doctor, Limits) {
  EXPECT_EQ(doctor::check_open_files(1024, 524288).status, doctor::CheckStatus::Note);
  EXPECT_THAT(doctor::check_open_files(1024, 2048).fix, HasSubstr("ulimit -n 2048"));
  EXPECT_THAT(doctor::check_open_files(1024, 2048).fix, HasSubstr("the hard limit is 2048"));
  EXPECT_THAT(doctor::check_open_files(64, 64).fix,
              AllOf(HasSubstr("the hard limit is 64, which only root raises"),
                    Not(HasSubstr("ulimit -n 64"))));
  EXPECT_EQ(doctor::check_open_files(65536, 65536).status, doctor::CheckStatus::Ok);
  EXPECT_EQ(doctor::check_processes(100).status, doctor::CheckStatus::Note);
  EXPECT_EQ(doctor::check_processes(~uint64_t{0}).found, "unlimited");
}

TEST_F(Doctor, HostName) {
  EXPECT_EQ(doctor::check_host_name("me", {}, "Name or service not known").status,
            doctor::CheckStatus::Problem);
  EXPECT_EQ(doctor::check_host_name("me", {"127.0.1.1", "::1"}, "").status,
            doctor::CheckStatus::Note);
  EXPECT_THAT(doctor::check_host_name("me", {"127.0.1.1"}, "").fix,
              HasSubstr("GLOO_SOCKET_IFNAME"));
  EXPECT_EQ(doctor::check_host_name("me", {"127.0.1.1", "10.0.0.5"}, "").status,
            doctor::CheckStatus::Ok);
}

TEST_F(Doctor, Isolation) {
  EXPECT_THAT(doctor::check_isolation(std::nullopt).found, HasSubstr("pidns"));
  EXPECT_THAT(doctor::check_isolation("not permitted").found,
              HasSubstr("guardian: no PID namespace (not permitted)"));
}

TEST_F(Doctor, TableAndJsonSayTheSame) {
  const std::vector<doctor::CheckResult> checks{{.name = "a", .found = "fine"},
                                                {.name = "longer",
                                                 .status = doctor::CheckStatus::Problem,
                                                 .found = "bad \xff",
                                                 .fix = "mend"}};
  EXPECT_FALSE(doctor::is_healthy(checks));
  EXPECT_EQ(doctor::checks_table(checks),
            "ok       a       fine\nPROBLEM  longer  bad \xff\n                 -> mend\n");
  const auto json = nlohmann::json::parse(doctor::checks_json(checks));
  EXPECT_FALSE(json["ok"].get<bool>());
  EXPECT_EQ(json["checks"][1]["status"], "PROBLEM");
  EXPECT_EQ(json["checks"][1]["fix"], "mend");
}

}  // namespace
}  // namespace lockstep

// Where a training may run: on emulated machines, without IPv4, as an ordinary user, in a home that
// can only be read, under a clock that jumps, in an image. It is killed and resumed there, or comes
// to its end, with the bits of a run on one rank.

#include <algorithm>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "support/nodes.h"
#include "support/paths.h"
#include "support/service.h"
#include "support/small_disk.h"
#include "train/places/places.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

const std::string kSecret = "0123456789abcdef0123456789abcdef";
const std::string kClock = testing_support::in_build("jumping_clock.so");

Words with(Words first, const Words& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

// `lockstep run` on this machine.
std::unique_ptr<Training> start_here(const Words& flags, const Words& program,
                                     JobPlace place = {}) {
  std::vector<std::unique_ptr<Job>> jobs;
  jobs.push_back(
      std::make_unique<Job>(with(with({"--no-prefix"}, flags), with({"--"}, program)), place));
  return std::make_unique<JobsOfTraining>(std::move(jobs));
}

class TrainingOnMachines : public ::testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS("namespaces", nodes_refusal());
    nodes_ = std::make_unique<TestNodes>(2);
  }

  // Two ranks on each.
  std::unique_ptr<Training> start(const std::string& endpoint,
                                  const std::map<std::string, std::string>& more = {}) {
    std::vector<std::unique_ptr<Job>> jobs;
    for (int node = 0; node < nodes_->size(); ++node) {
      std::map<std::string, std::string> env{{"LOCKSTEP_JOB_SECRET", kSecret}};
      env.insert(more.begin(), more.end());
      jobs.push_back(std::make_unique<Job>(
          with({"--no-prefix", "--nproc-per-node=2", "--nnodes=2", "--rdzv-backend=lockstep",
                "--rdzv-endpoint=" + endpoint, "--"},
               training(checkpoints_)),
          JobPlace{.env = std::move(env), .inside = [this, node](base::ProcessOptions options) {
                     return nodes_->inside(node, std::move(options));
                   }}));
    }
    return std::make_unique<JobsOfTraining>(std::move(jobs));
  }

  void tell(int node, const std::string& command) {
    const base::Output output = base::run_process(
        nodes_->inside(node, {.argv = {"sh", "-ec", command}}), base::Deadline::after(kPatience));
    ASSERT_TRUE(output.status.ok()) << output.err;
  }

  TempFolder folder_;
  const std::string checkpoints_ = folder_.at("checkpoints");
  std::unique_ptr<TestNodes> nodes_;
};

TEST_F(TrainingOnMachines, IsResumed) {
  expect_survives_a_kill([this] { return start("node0:29400"); }, checkpoints_);
}

// As on other hosts without it, the loopback interface alone has an address of IPv4.
TEST_F(TrainingOnMachines, WithoutIPv4IsResumed) {
  const auto address = [](int node) { return fmt::format("fd00:88::{}", node + 1); };
  std::string hosts = "::1 localhost\n";
  for (int node = 0; node < nodes_->size(); ++node) {
    hosts += fmt::format("{} {}\n", address(node), nodes_->host_name(node));
  }
  for (int node = 0; node < nodes_->size(); ++node) {
    ASSERT_NO_FATAL_FAILURE(
        tell(node, fmt::format("ip -6 address add {}/64 dev eth0 nodad; ip -4 address flush dev "
                               "eth0; test -z \"$(ip -4 -o address show scope global)\"",
                               address(node))));
    nodes_->write_hosts(node, hosts);
  }
  for (const std::string& endpoint : {std::string("node0:29400"), "[" + address(0) + "]:29401"}) {
    SCOPED_TRACE(endpoint);
    expect_survives_a_kill([&] { return start(endpoint); }, checkpoints_);
    std::filesystem::remove_all(checkpoints_);
  }
  // One machine alone meets nobody.
  std::vector<std::unique_ptr<Job>> jobs;
  jobs.push_back(
      std::make_unique<Job>(with({"--no-prefix", "--nproc-per-node=2", "--"}, training("")),
                            JobPlace{.env = {}, .inside = [this](base::ProcessOptions options) {
                                       return nodes_->inside(1, std::move(options));
                                     }}));
  JobsOfTraining alone(std::move(jobs));
  expect_trains(alone);
}

// The library that does it is in every process: launchers, agents, ranks.
TEST_F(TrainingOnMachines, UnderAClockThatJumpsIsResumed) {
  const base::Output seen = base::run_process(
      {.argv = {"sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do date +%s; sleep 0.03; done"},
       .env = {{"LD_PRELOAD", kClock}}},
      base::Deadline::after(kPatience));
  const std::vector<std::string> times = lines(seen.out);
  ASSERT_EQ(times.size(), 10u) << seen.err;
  const auto [least, most] = std::minmax_element(times.begin(), times.end());
  ASSERT_GT(std::stoll(*most) - std::stoll(*least), 3000) << "it does not jump: " << seen.out;
  expect_survives_a_kill(
      [this] {
        return start("node0:29400", {{"LD_PRELOAD", kClock}});
      },
      checkpoints_);
}

class TrainingHere : public ::testing::Test {
 protected:
  TempFolder folder_;
  const std::string checkpoints_ = folder_.at("checkpoints");
};

TEST_F(TrainingHere, OfAnOrdinaryUserIsResumed) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "the other tests are this one";
  }
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::all);
  JobPlace user{.env = {{"HOME", "/nonexistent"}, {"TMPDIR", folder_.path()}},
                .inside = [](base::ProcessOptions options) {
                  const Words words{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                                    "--no-new-privs"};
                  options.argv.insert(options.argv.begin(), words.begin(), words.end());
                  return options;
                }};
  expect_survives_a_kill(
      [&] { return start_here({"--nproc-per-node=4"}, training(checkpoints_), user); },
      checkpoints_);
  struct stat info {};
  ASSERT_EQ(::stat((checkpoints_ + "/latest").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 65534u);
}

TEST_F(TrainingHere, WithAHomeThatCanOnlyBeReadIsResumed) {
  LOCKSTEP_NEEDS("namespaces", disk_refusal());
  const std::string home = folder_.at("home");
  std::filesystem::create_directory(home);
  JobPlace place{.env = {{"HOME", home}}, .inside = [&](base::ProcessOptions options) {
                   options.argv = on_disk({.folder = home, .can_write = false}, options.argv);
                   return options;
                 }};
  expect_survives_a_kill(
      [&] { return start_here({"--nproc-per-node=2"}, training(checkpoints_), place); },
      checkpoints_);
}

// The folders of the libraries that the program brings along: those of no system.
std::set<std::string> own_libraries(const std::string& program) {
  const base::Output listed =
      base::run_process({.argv = {"ldd", program}}, base::Deadline::after(kPatience));
  EXPECT_TRUE(listed.status.ok()) << listed.err;
  std::set<std::string> folders;
  for (const std::string& line : lines(listed.out)) {
    const size_t begin = line.find("=> /");
    if (begin != std::string::npos) {
      const std::filesystem::path path = line.substr(begin + 3, line.find(" (") - begin - 3);
      if (!path.string().starts_with("/lib") && !path.string().starts_with("/usr/lib")) {
        folders.insert(path.parent_path().lexically_normal().string());
      }
    }
  }
  return folders;
}

// An image with the program in it; libtorch, too large for a test's image, and the system's own
// libraries are the host's.
TEST_F(TrainingHere, InAnImageIsResumed) {
  const std::string root = folder_.at("root");
  std::filesystem::create_directory(root);
  std::filesystem::create_directory(root + "/usr");
  for (const char* name : {"bin", "lib", "lib64"}) {
    std::filesystem::create_directory_symlink(std::string("usr/") + name, root + "/" + name);
  }
  std::filesystem::create_directory(checkpoints_);
  const std::string image = folder_.at("job.sqsh");
  const Words program = training("/checkpoints");
  Words build{"image", "build", "--from", root, "--no-libs", "--add", program[0] + ":/train",
              "-o",    image};
  Words flags{"--nproc-per-node=2",          "--image", image, "--mount", "/usr:/usr:ro", "--mount",
              checkpoints_ + ":/checkpoints"};
  for (const std::string& libraries : own_libraries(program[0])) {
    build.insert(build.end(), {"--mkdir", libraries});
    flags.insert(flags.end(), {"--mount", libraries + ":" + libraries + ":ro"});
  }
  const base::Output built = run_lockstep(build);
  LOCKSTEP_NEEDS("image", built.status.ok() ? std::nullopt : std::optional(built.err));
  const base::Output check = run_lockstep({"image", "check", image});
  LOCKSTEP_NEEDS("image", check.status.ok() ? std::nullopt : std::optional(check.err));
  expect_survives_a_kill([&] { return start_here(flags, {"/train", program[1]}); }, checkpoints_);
}

}  // namespace
}  // namespace lockstep::test

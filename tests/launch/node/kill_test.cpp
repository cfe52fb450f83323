// kill -9 of any process of a job leaves nobody behind, not even children that moved to sessions of
// their own.

#include <cstdlib>
#include <random>
#include <signal.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/process/isolation.h"
#include "support/job.h"
#include "support/service.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kFamily = "setsid sleep 1000 & echo ready; sleep 1000";

class Kill : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS("namespaces",
                   GetParam() == "pidns" ? base::pid_namespace_refusal() : std::nullopt);
  }

  std::vector<std::string> arguments(const std::string& script) const {
    return {"--isolation",
            GetParam(),
            "--nproc-per-node",
            "2",
            "--local-nodes",
            "2",
            "--stop-grace",
            "1",
            "sh",
            "-c",
            script};
  }
};

TEST_P(Kill, OfTheLeaderEndsAll) {
  Job job(arguments(kFamily));
  ASSERT_TRUE(job.wait_for_output("ready", 4));
  const auto killed = base::Clock::now();
  job.kill(SIGKILL);
  EXPECT_EQ(job.wait().signal, SIGKILL);
  EXPECT_TRUE(job.is_gone());
  RecordProperty("ms", static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                            base::Clock::now() - killed)
                                            .count()));
}

TEST_P(Kill, OfAnAgentEndsAllAndIsSaid) {
  Job job(arguments(kFamily));
  ASSERT_TRUE(job.wait_for_output("ready", 4));
  const auto agents = job.agents();
  ASSERT_EQ(agents.size(), 2u);
  ::kill(agents[1], SIGKILL);
  EXPECT_EQ(job.wait().code, 137);
  EXPECT_TRUE(job.is_gone());
  EXPECT_THAT(job.err(), HasSubstr(fmt::format("the agent (pid {}) of node", agents[1])));
}

TEST_P(Kill, OfAGuardianEndsAllAndIsSaid) {
  Job job(arguments(kFamily));
  ASSERT_TRUE(job.wait_for_output("ready", 4));
  const auto guardians = job.guardians();
  ASSERT_EQ(guardians.size(), 2u);
  ::kill(guardians[0], SIGKILL);
  EXPECT_EQ(job.wait().code, 137);
  EXPECT_TRUE(job.is_gone());
  EXPECT_THAT(job.err(), HasSubstr(fmt::format("the guardian (pid {}) of node", guardians[0])));
}

TEST_P(Kill, OfAgentAndGuardianTogetherEndsAll) {
  Job job(arguments(kFamily));
  ASSERT_TRUE(job.wait_for_output("ready", 4));
  const pid_t agent = job.agents().at(0);
  const pid_t guardian = children_of(agent).at(0);
  ::kill(agent, SIGKILL);
  ::kill(guardian, SIGKILL);
  EXPECT_EQ(job.wait().code, 137);
  EXPECT_TRUE(job.is_gone());
}

TEST_P(Kill, OfAllButTheWorkersEndsThemToo) {
  if (GetParam() == "guardian") {
    GTEST_SKIP() << "only the kernel can promise this, by a PID namespace";
  }
  Job job(arguments(kFamily));
  ASSERT_TRUE(job.wait_for_output("ready", 4));
  std::vector<pid_t> victims{job.leader()};
  for (const pid_t agent : job.agents()) {
    victims.push_back(agent);
    victims.push_back(children_of(agent).at(0));
  }
  for (const pid_t victim : victims) {
    ::kill(victim, SIGKILL);
  }
  job.wait();
  EXPECT_TRUE(job.is_gone());
}

TEST_P(Kill, OfAWorkerEndsAllAndNamesItsRank) {
  Job job(arguments(kFamily));
  ASSERT_TRUE(job.wait_for_output("ready", 4));
  const pid_t victim = job.workers().at(0);
  ::kill(victim, SIGKILL);
  EXPECT_EQ(job.wait().code, 137);
  EXPECT_TRUE(job.is_gone());
  EXPECT_THAT(job.err(), HasSubstr(fmt::format("pid {}) failed: killed by signal 9", victim)));
  EXPECT_THAT(job.err(), HasSubstr("3 other ranks: 3 stopped by lockstep"));
}

TEST_P(Kill, LeftoversOfASuccessfulJobAreEndedToo) {
  Job job(arguments("setsid sleep 1000 & sleep 1000 & echo ready"));
  EXPECT_EQ(job.wait().code, 0) << job.err();
  EXPECT_TRUE(job.is_gone());
  EXPECT_EQ(job.err(), "");
}

// A worker that ignores what it is asked, with children that do the same.
TEST_P(Kill, AfterTheGraceNobodyIsLeft) {
  Job job(
      arguments("trap '' TERM; (trap '' TERM; setsid sleep 1000) & echo ready; "
                "[ $RANK = 1 ] && exit 3; sleep 1000; sleep 1000"));
  EXPECT_EQ(job.wait().code, 3);
  EXPECT_TRUE(job.is_gone());
}

TEST_P(Kill, OfAnyProcessAtAnyTimeLeavesNobody) {
  const bool is_long = std::getenv("LOCKSTEP_LONG_TESTS") != nullptr;
  const int num_kills = is_long ? 200 : 10;  // in each of the two modes
  std::mt19937 random(20240229);
  for (int i = 0; i < num_kills; ++i) {
    Job job(arguments(kFamily));
    // From the first process to the last: sometimes in the middle of the start.
    const auto min_processes = static_cast<size_t>(1 + random() % 13);
    std::vector<pid_t> processes;
    ASSERT_TRUE(wait_until([&] { return (processes = job.processes()).size() >= min_processes; }));
    const pid_t victim = processes[random() % processes.size()];
    ::kill(victim, SIGKILL);
    const bool was_leader = victim == job.leader();
    if (!was_leader) {
      job.kill(SIGTERM);  // the victim may have been a grandchild, which nobody misses
    }
    job.wait();
    ASSERT_TRUE(job.is_gone()) << "kill " << i << " of pid " << victim << " at "
                               << processes.size();
  }
}

TEST_P(Kill, OfProcessesOfAJobThatRestartsLeavesNobody) {
  const bool is_long = std::getenv("LOCKSTEP_LONG_TESTS") != nullptr;
  const int num_jobs = is_long ? 50 : 3;
  constexpr int kMaxRestarts = 3;
  std::mt19937 random(20240301);
  for (int i = 0; i < num_jobs; ++i) {
    std::vector<std::string> words = arguments(kFamily);
    words.insert(words.begin(), fmt::format("--max-restarts={}", kMaxRestarts));
    Job job(words);
    std::vector<pid_t> processes;
    bool is_led = true;
    for (int kills = 0; kills <= kMaxRestarts && is_led; ++kills) {
      const auto min_processes = static_cast<size_t>(1 + random() % 13);
      ASSERT_TRUE(wait_until([&] {
        processes = job.processes();
        return processes.size() >= min_processes || (kills > 0 && processes.empty());
      }));
      if (processes.empty()) {
        break;  // it has spent its restarts
      }
      const pid_t victim = processes[random() % processes.size()];
      if (victim == job.leader() && kills > 0 && GetParam() == "guardian") {
        continue;  // with a guardian at the same time: only a PID namespace survives that
      }
      ::kill(victim, SIGKILL);
      is_led = victim != job.leader();
    }
    job.kill(SIGTERM);
    job.wait();
    ASSERT_TRUE(job.is_gone()) << "job " << i;
  }
}

base::Output in_shell(const std::string& script) {
  return base::run_process({.argv = {"sh", "-c", script}}, base::Deadline::after(kPatience));
}

// Rank 0 has ended, and a stranger has got its number, which was its process group's too.
TEST(KillNumbers, AStrangerWithTheNumberOfARankIsLeftAlone) {
  const std::string inside = "unshare --pid --fork --kill-child --mount-proc ";
  const base::Output trial = in_shell(inside + "sh -c 'echo 50 > /proc/sys/kernel/ns_last_pid'");
  LOCKSTEP_NEEDS("namespaces", trial.status.ok() ? std::nullopt : std::optional(trial.err));
  TempFolder folder;
  const std::string script = folder.file("script", fmt::format(R"(
cd {}
{} run --isolation guardian --nproc-per-node 2 sh -c '
  echo $$ > rank$RANK.new; mv rank$RANK.new rank$RANK; [ $RANK = 0 ] || exec sleep 1000' &
leader=$!
until [ -e rank0 ] && [ -e rank1 ] && ! [ -e /proc/$(cat rank0) ]; do sleep 0.01; done
wanted=$(cat rank0)
echo $((wanted - 1)) > /proc/sys/kernel/ns_last_pid
setsid sleep 1000 &
stranger=$!
until grep -q sleep /proc/$stranger/comm; do sleep 0.01; done  # its group is its own by now
kill -TERM $leader
wait $leader
echo code $?
[ $stranger = $wanted ] && [ -e /proc/$stranger/exe ] && echo it lives
)",
                                                               folder.path(), lockstep_program()));
  const base::Output output = in_shell(inside + "sh " + script);
  EXPECT_THAT(output.out, HasSubstr("code 143")) << output.err;
  EXPECT_THAT(output.out, HasSubstr("it lives")) << output.err;
}

// An ordinary user has the kernel's promise too, where it lets him make user namespaces.
TEST(KillUser, AllButTheWorkersOfAnOrdinaryUserLeavesNobody) {
  const std::vector<std::string> user{"setpriv", "--reuid=65534", "--regid=65534",
                                      "--clear-groups"};
  const base::Output trial = in_shell(
      fmt::format("{} unshare --user --pid --fork --mount-proc true", fmt::join(user, " ")));
  LOCKSTEP_NEEDS("namespaces", trial.status.ok() ? std::nullopt : std::optional(trial.err));
  const auto as_user = [&](base::ProcessOptions options) {
    options.argv.insert(options.argv.begin(), user.begin(), user.end());
    return options;
  };
  Job job({"--nproc-per-node", "2", "sh", "-c",
           "setsid sleep 1000 & sleep 1000 & id -u; echo ready; sleep 1000"},
          {.inside = as_user});
  ASSERT_TRUE(job.wait_for_output("ready", 2)) << job.err();
  EXPECT_EQ(count(job.out(), ": 65534\n"), 2) << "he is who he was";
  std::vector<pid_t> victims{job.leader()};
  for (const pid_t agent : job.agents()) {
    victims.push_back(agent);
    victims.push_back(children_of(agent).at(0));
  }
  for (const pid_t victim : victims) {
    ::kill(victim, SIGKILL);
  }
  job.wait();
  EXPECT_TRUE(job.is_gone());
}

// In a user namespace root would no longer be root of anything but himself.
TEST(KillUser, RootWithoutTheRightToAPidNamespaceStaysRoot) {
  const std::string without = "setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin ";
  const base::Output trial = in_shell(without + "readlink /proc/self/ns/user");
  LOCKSTEP_NEEDS("namespaces", trial.status.ok() ? std::nullopt : std::optional(trial.err));
  const base::Output output =
      in_shell(without + lockstep_program() + " run readlink /proc/self/ns/user");
  EXPECT_EQ(output.out, "r0: " + trial.out) << output.err;
}

INSTANTIATE_TEST_SUITE_P(Modes, Kill, ::testing::Values("pidns", "guardian"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace lockstep::test

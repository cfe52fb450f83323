// `lockstep run --hosts` on emulated machines with real ssh between them, started on node 0.

#include <algorithm>
#include <signal.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "remote/ssh_fixture.h"
#include "support/job.h"

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using Words = std::vector<std::string>;

constexpr auto kLeaveLimit = 3s;  // for ranks of a starter that was killed
const std::string kWait = "echo up $RANK; exec sleep 1000";

class SshJob : public SshTest {
 protected:
  void SetUp() override {
    SshTest::SetUp();
    if (nodes_) {
      servers_before_ = processes();
    }
  }

  void TearDown() override {
    if (nodes_) {
      EXPECT_TRUE(wait_until([this] { return is_quiet(); })) << "somebody is left on the nodes";
    }
  }

  static std::vector<pid_t> processes() {
    std::vector<pid_t> all;
    for (int node = 0; node < nodes_->size(); ++node) {
      const std::vector<pid_t> some = nodes_->processes(node);
      all.insert(all.end(), some.begin(), some.end());
    }
    std::sort(all.begin(), all.end());
    return all;
  }

  // Only the ssh servers run.
  bool is_quiet() const {
    const std::vector<pid_t> now = processes();
    return std::includes(servers_before_.begin(), servers_before_.end(), now.begin(), now.end());
  }

  // `lockstep run FLAGS -- sh -c SCRIPT` on node 0.
  static std::unique_ptr<Job> start(Words flags, const std::string& script,
                                    std::map<std::string, std::string> env = {}) {
    env["LOCKSTEP_SSH"] = fmt::format("{}", fmt::join(servers_->client(), " "));
    flags.insert(flags.end(), {"--", "sh", "-c", script});
    return std::make_unique<Job>(
        flags, JobPlace{.env = std::move(env),
                        .inside = [](base::ProcessOptions o) { return nodes_->inside(0, o); }});
  }
  static std::unique_ptr<Job> start_eight(const std::string& script) {
    return start({"--hosts", "node0,node1", "--nproc-per-node=4"}, script);
  }

  std::vector<pid_t> servers_before_;
};

TEST_F(SshJob, OneCommandRunsEightRanksOnTwoHosts) {
  const std::string go = folder_->path() + "/go";
  const auto job = start_eight(fmt::format(
      "echo rank $RANK of $WORLD_SIZE on $(hostname) at $MASTER_ADDR; i=0; while [ $i -lt 200 ]; "
      "do echo line $i of some length; i=$((i+1)); done; until [ -e {} ]; do sleep 0.05; done",
      go));
  ASSERT_TRUE(job->wait_for_output("line 199 of some length\n", 8)) << job->err();
  expect_secret_is_hidden(processes());
  folder_->file("go", "");
  EXPECT_EQ(job->wait().shell_code(), 0) << job->err();
  EXPECT_EQ(job->err(), "");
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_THAT(job->out(),
                HasSubstr(fmt::format("n{0} r{1}: rank {1} of 8 on node{0} at 10.88.0.1\n",
                                      rank / 4, rank)));
  }
  EXPECT_EQ(lines(job->out()).size(), 8u * 201);
  EXPECT_THAT(lines(job->out()),
              Each(MatchesRegex("n[01] r[0-7]: (rank [0-7] of 8 on node[01] at 10.88.0.1|line "
                                "[0-9]+ of some length)")));
}

TEST_F(SshJob, AHostFileSaysHowManyAndVariablesTravel) {
  const std::string file = folder_->file("hosts", "node1 slots=2  # the bigger one\nnode2:1\n");
  const auto job = start({"--hostfile", file, "--env", "COLOUR", "--env", "TASTE=sweet and sour"},
                         "echo $RANK of $WORLD_SIZE on $(hostname): $COLOUR, $TASTE, $OTHER.",
                         {{"COLOUR", "red"}, {"OTHER", "stays"}, {"RANK", "5"}});
  EXPECT_EQ(job->wait().shell_code(), 0) << job->err();
  EXPECT_EQ(count(job->out(), ": red, sweet and sour, ."), 3) << job->out();
  EXPECT_THAT(job->out(), AllOf(HasSubstr("0 of 3 on node1"), HasSubstr("1 of 3 on node1"),
                                HasSubstr("2 of 3 on node2")));
}

TEST_F(SshJob, AFailureOnAnotherHostIsReportedAndPassedOn) {
  const auto job =
      start_eight("if [ $RANK = 6 ]; then echo last words; exit 7; fi; exec sleep 1000");
  EXPECT_EQ(job->wait().shell_code(), 7);
  EXPECT_EQ(count(job->err(), "failed"), 1) << job->err();
  EXPECT_THAT(job->err(), AllOf(HasSubstr("rank 6 (node1, node 1, local rank 2"),
                                HasSubstr("exit code 7"), HasSubstr("last words")));
}

TEST_F(SshJob, AHostThatCannotBeReachedIsOneSentence) {
  const auto job = start({"--hosts", "node1,no-such-host"}, kWait);
  EXPECT_EQ(job->wait().shell_code(), 1);
  EXPECT_EQ(job->out(), "");
  EXPECT_THAT(job->err(), AllOf(HasSubstr("cannot reach no-such-host by ssh: ssh: "),
                                HasSubstr("`ssh no-such-host true` must work")));
  EXPECT_EQ(lines(job->err()).size(), 1u) << job->err();
}

TEST_F(SshJob, NobodyIsLeftWhenTheStarterIsKilled) {
  const auto job = start_eight("setsid sleep 1000 & " + kWait);
  ASSERT_TRUE(job->wait_for_output("up", 8)) << job->err();
  const auto begin = base::Clock::now();
  job->kill(SIGKILL);
  EXPECT_TRUE(wait_until([this] { return is_quiet(); }));
  EXPECT_LT(base::Clock::now() - begin, kLeaveLimit);
  job->wait();
}

TEST_F(SshJob, ANodeThatIsKilledEndsAllAndIsNamed) {
  const auto job = start_eight(kWait);
  ASSERT_TRUE(job->wait_for_output("up", 8)) << job->err();
  for (const pid_t pid : nodes_->processes(1)) {  // all of it but the ssh server
    if (!std::binary_search(servers_before_.begin(), servers_before_.end(), pid)) {
      ::kill(pid, SIGKILL);
    }
  }
  EXPECT_NE(job->wait().shell_code(), 0);
  EXPECT_THAT(job->err(), HasSubstr("node1"));
}

TEST_F(SshJob, CtrlCStopsAllInOrder) {
  const auto job =
      start_eight("trap 'echo saved; exit 0' INT; echo up; while :; do sleep 0.05; done");
  ASSERT_TRUE(job->wait_for_output("up", 8)) << job->err();
  job->kill(SIGINT);
  EXPECT_EQ(job->wait().shell_code(), 130);
  EXPECT_EQ(count(job->out(), "saved"), 8) << job->out() << job->err();
}

TEST_F(SshJob, ADryRunShowsTheCommands) {
  const auto job = start({"--hosts", "node0,node1:2", "--nproc-per-node=4", "--dry-run"}, "echo x");
  EXPECT_EQ(job->wait().shell_code(), 0) << job->err();
  EXPECT_THAT(job->out(),
              AllOf(HasSubstr("head: here, at 10.88.0.1"), HasSubstr("node 0 on node0: ranks 0-3"),
                    HasSubstr("node 1 on node1: ranks 4-5"),
                    HasSubstr("lockstep run '--nproc-per-node=4' -- sh -c 'echo x'"),
                    Not(HasSubstr("r0:"))));
}

}  // namespace
}  // namespace lockstep::test

// Ctrl-C, SIGTERM and what workers may do with them.

#include <signal.h>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/job.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;

class StopSignal : public ::testing::TestWithParam<int> {};

TEST_P(StopSignal, StopsTheRanksAndIsTheExitCode) {
  Job job({"--nproc-per-node", "3", "sh", "-c", "echo ready; sleep 1000"});
  ASSERT_TRUE(job.wait_for_output("ready", 3));
  job.kill(GetParam());
  EXPECT_EQ(job.wait().code, 128 + GetParam());
  EXPECT_TRUE(job.is_gone());
  EXPECT_THAT(job.err(), HasSubstr("stopped by " + base::signal_name(GetParam())));
  EXPECT_THAT(job.err(), HasSubstr("3 ranks: 3 stopped by lockstep"));
}

// Python's KeyboardInterrupt is SIGINT and nothing else.
TEST_P(StopSignal, ReachesTheRanksAsItCame) {
  Job job({"sh", "-c",
           "for s in INT TERM HUP QUIT; do trap \"echo got $s; exit 0\" $s; done; echo ready; "
           "while :; do sleep 0.02; done"});
  ASSERT_TRUE(job.wait_for_output("ready", 1));
  job.kill(GetParam());
  EXPECT_EQ(job.wait().code, 128 + GetParam());
  EXPECT_EQ(job.out(), "r0: ready\nr0: got " + base::signal_name(GetParam()).substr(3) + "\n");
}

INSTANTIATE_TEST_SUITE_P(All, StopSignal, ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGQUIT),
                         [](const auto& test) { return base::signal_name(test.param); });

TEST(Signal, CtrlCReachesTheWholeGroupYetStopsInOrder) {
  Job job({"--nproc-per-node", "2", "sh", "-c",
           "trap 'echo saved; exit 0' INT; echo ready; while :; do sleep 0.02; done"});
  ASSERT_TRUE(job.wait_for_output("ready", 2));
  ::kill(-job.leader(), SIGINT);  // as a terminal does: leader, agents and guardians get it
  EXPECT_EQ(job.wait().code, 130);
  EXPECT_EQ(count(job.out(), "saved"), 2);
  EXPECT_THAT(job.err(), HasSubstr("2 ranks: 2 exited with 0"));
}

TEST(Signal, SecondCtrlCKillsAtOnce) {
  Job job({"--nproc-per-node", "2", "--stop-grace", "1000", "sh", "-c",
           "trap '' TERM INT; echo ready; while :; do sleep 0.05; done"});
  ASSERT_TRUE(job.wait_for_output("ready", 2));
  job.kill(SIGINT);
  ASSERT_TRUE(wait_until([&] { return count(job.err(), "Ctrl-C again kills them now") == 1; }));
  job.kill(SIGINT);
  EXPECT_EQ(job.wait().code, 130);
  EXPECT_TRUE(job.is_gone());
  EXPECT_THAT(job.err(), HasSubstr("killed before the grace of 1000 s was over"));
}

TEST(Signal, IgnoredBySomeoneElseStaysIgnored) {
  // As `nohup` starts it.
  TempFolder folder;
  const base::Output output =
      base::run_process({.argv = {"sh", "-c",
                                  "trap '' HUP; " + lockstep_program() +
                                      " run sh -c 'echo ready; sleep 0.2; exit 4' & pid=$!; "
                                      "sleep 0.1; kill -HUP $pid; wait $pid"}},
                        base::Deadline::after(kPatience));
  EXPECT_EQ(output.status.code, 4) << output.err;
}

// As a shell starts a job in the background.
base::ProcessOptions with_ignored_interrupt(base::ProcessOptions options) {
  options.argv.insert(options.argv.begin(), {"sh", "-c", "trap '' INT; exec \"$@\"", "sh"});
  return options;
}

TEST(Signal, IgnoredBySomeoneElseIsHandledIfItIsAskedFor) {
  Job job({"--signals-to-handle=SIGINT,SIGTERM", "sh", "-c", "echo ready; exec sleep 1000"},
          {.inside = with_ignored_interrupt});
  ASSERT_TRUE(job.wait_for_output("ready", 1));
  job.kill(SIGINT);
  EXPECT_EQ(job.wait().code, 130);
  EXPECT_TRUE(job.is_gone());
}

// What a shell starts in the background ignores SIGINT.
TEST(Signal, WhoIgnoresCtrlCDoesNotHoldTheJob) {
  Job job({"--stop-grace", "1000", "sh", "-c", "sleep 1000 & echo ready; wait"});
  ASSERT_TRUE(job.wait_for_output("ready", 1));
  job.kill(SIGINT);
  EXPECT_EQ(job.wait().code, 130);
  EXPECT_TRUE(job.is_gone());
}

TEST(Signal, WorkersHaveDefaultHandlingAndAnEmptyMask) {
  const base::Output output =
      run_lockstep({"run", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"});
  EXPECT_EQ(output.out, "r0: SigBlk:\t0000000000000000\nr0: SigIgn:\t0000000000000000\n");
}

TEST(Signal, AStoppedWorkerIsAskedToo) {
  Job job({"--stop-grace", "1000", "sh", "-c",
           "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done"});
  ASSERT_TRUE(job.wait_for_output("ready", 1));
  ::kill(job.workers().at(0), SIGSTOP);
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait().code, 143);
  EXPECT_TRUE(job.is_gone());
}

TEST(Signal, AStoppedAgentDoesNotHoldTheJob) {
  Job job({"--stop-grace", "0", "sh", "-c", "echo ready; sleep 1000"});
  ASSERT_TRUE(job.wait_for_output("ready", 1));
  ::kill(job.agents().at(0), SIGSTOP);
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait().code, 143);
  EXPECT_TRUE(job.is_gone());
}

// The shell dies of SIGTERM at once; what it started is still saving, and has the grace to do so.
TEST(Signal, TheGraceIsForTheWholeProcessGroup) {
  TempFolder folder;
  const std::string inner = folder.file(
      "inner.sh",
      "trap 'sleep 0.2; echo saved; exit' TERM; echo ready; while :; do sleep 0.02; done");
  Job job({"--stop-grace", "1000", "sh", "-c", "sh " + inner + "; echo never"});
  ASSERT_TRUE(job.wait_for_output("ready", 1));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait().code, 143);
  EXPECT_THAT(job.out(), HasSubstr("saved"));
}

TEST(Signal, AfterTheGraceWorkersAreKilled) {
  Job job({"--nproc-per-node", "2", "--stop-grace", "0.1", "sh", "-c",
           "trap '' TERM; echo ready; [ $RANK = 1 ] && exit 5; while :; do sleep 0.05; done"});
  EXPECT_EQ(job.wait().code, 5);
  EXPECT_TRUE(job.is_gone());
  EXPECT_THAT(job.err(), HasSubstr("1 other rank: 1 stopped by lockstep (rank 0 killed after the "
                                   "grace of 100 ms; --stop-grace gives more)"));
}

TEST(Signal, Usr1EndsTheJobIfItIsToldTo) {
  Job job({"--nproc-per-node=2", "--signals-to-handle=SIGUSR1", "sh", "-c",
           "echo up; exec sleep 1000"});
  ASSERT_TRUE(job.wait_for_output("up", 2));
  job.kill(SIGUSR1);
  EXPECT_EQ(job.wait().shell_code(), 128 + SIGUSR1);
  EXPECT_TRUE(job.is_gone());
}

}  // namespace
}  // namespace lockstep::test

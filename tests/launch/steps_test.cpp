// Programs that use the library, under `lockstep run`: what they are asked, and starting anew.

#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/job.h"
#include "support/paths.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;

const std::string kProgram = testing_support::in_build("job_steps");

// "saved at step 12" of every rank, without the rank.
std::vector<std::string> answers(const Job& job, const std::string& word) {
  std::vector<std::string> found;
  for (const std::string& line : lines(job.out())) {
    if (const size_t at = line.find(word); at != std::string::npos) {
      found.push_back(line.substr(at));
    }
  }
  return found;
}

void expect_same(const std::vector<std::string>& answers, size_t num) {
  ASSERT_EQ(answers.size(), num);
  for (const std::string& answer : answers) {
    EXPECT_EQ(answer, answers.front()) << "all ranks at the same step";
  }
}

TEST(Requests, RanksSaveAndEndAtTheSameStep) {
  Job job({"--nproc-per-node=4", kProgram});
  ASSERT_TRUE(job.wait_for_output("up", 4)) << job.err();
  job.kill(SIGUSR1);
  ASSERT_TRUE(job.wait_for_output("saved", 4));
  expect_same(answers(job, "saved"), 4);
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait().shell_code(), 143);
  expect_same(answers(job, "ended"), 4);
  EXPECT_THAT(job.err(), HasSubstr("SIGTERM: asking 4 ranks"));
  EXPECT_THAT(job.err(), HasSubstr("4 exited with 0"));
  EXPECT_TRUE(job.is_gone());
}

// A rank that hears of a request after the others have answered it does not ask once more.
TEST(Requests, EachIsAnsweredOnce) {
  constexpr int kRequests = 50;
  Job job({"--nproc-per-node=4", kProgram});
  ASSERT_TRUE(job.wait_for_output("up", 4)) << job.err();
  for (int request = 1; request <= kRequests; ++request) {
    job.kill(SIGUSR1);
    ASSERT_TRUE(job.wait_for_output("saved", 4 * request));
  }
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait().shell_code(), 143);
  EXPECT_EQ(answers(job, "saved").size(), 4u * kRequests);
}

TEST(Requests, AGroupOfOneIsAskedToo) {
  Job job({"--nproc-per-node=1", kProgram});
  ASSERT_TRUE(job.wait_for_output("up", 1)) << job.err();
  job.kill(SIGUSR1);
  ASSERT_TRUE(job.wait_for_output("saved", 1));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait().shell_code(), 143);
  EXPECT_TRUE(job.wait_for_output("ended", 1));
}

TEST(Requests, ASecondSignalDoesNotAsk) {
  Job job({"--nproc-per-node=2", "--stop-grace=60", kProgram});
  ASSERT_TRUE(job.wait_for_output("up", 2)) << job.err();
  for (const pid_t worker : job.workers()) {
    ::kill(worker, SIGSTOP);  // it cannot answer
  }
  job.kill(SIGTERM);
  ASSERT_TRUE(wait_until([&] { return count(job.err(), "asking 2 ranks") == 1; }));
  job.kill(SIGINT);
  EXPECT_EQ(job.wait().shell_code(), 143);
  EXPECT_TRUE(job.is_gone());
}

// SIGUSR1 would end a program that does not handle it.
TEST(Requests, OnlyProgramsThatHandleItGetTheSignal) {
  Job job({"--nproc-per-node=2", "sh", "-c",
           "[ $RANK = 0 ] && trap 'echo asked' USR1; echo up; while :; do sleep 0.01; done"});
  ASSERT_TRUE(job.wait_for_output("up", 2));
  job.kill(SIGUSR1);
  ASSERT_TRUE(job.wait_for_output("asked", 1));
  EXPECT_EQ(job.workers().size(), 2u);
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait().shell_code(), 143);
}

TEST(Restart, TheNextGenerationMeetsAnew) {
  Job job({"--nproc-per-node=4", "--max-restarts=1", kProgram, "fail"});
  EXPECT_EQ(job.wait().shell_code(), 0) << job.err();
  EXPECT_EQ(count(job.out(), "up"), 8);
  expect_same(answers(job, "ended"), 4);
  EXPECT_THAT(job.err(), HasSubstr("rank 3"));
  EXPECT_THAT(job.err(), HasSubstr("restart 1 of 1"));
  EXPECT_TRUE(job.is_gone());
}

// Rank 1 leaves the group by its exception, and takes a moment to end: the others end before it.
void expect_blame_of_rank_1(const std::string& way) {
  Job job({"--nproc-per-node=4", kProgram, way});
  EXPECT_EQ(job.wait().shell_code(), 7) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("lockstep run: rank 1 ("));
  EXPECT_THAT(job.err(), HasSubstr("failed: exit code 7"));
  EXPECT_THAT(job.err(), HasSubstr("    the model of rank 1 broke"));
  EXPECT_TRUE(job.is_gone());
}

TEST(Failures, TheRankThatThrewIsBlamedNotItsVictims) {
  expect_blame_of_rank_1("throw");
}

TEST(Failures, TheRankThatLeftIsBlamedNotThoseWhoWaitedForIt) {
  expect_blame_of_rank_1("leave");
}

}  // namespace
}  // namespace lockstep::test

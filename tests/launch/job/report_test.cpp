#include "launch/job/report.h"

#include <cerrno>
#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::HasSubstr;

launch::RankRecord ended(int rank, base::ExitStatus status, int64_t stamp_ns,
                         bool stopped = false) {
  return {.rank = rank,
          .local_rank = rank,
          .pid = 100 + rank,
          .end = launch::RankEnd{.status = status, .stopped = stopped},
          .stamp_ns = stamp_ns};
}

TEST(Report, SuccessIsSilent) {
  const launch::Report report =
      launch::make_report("lockstep run", {ended(0, {}, 1), ended(1, {}, 2)}, {});
  EXPECT_EQ(report.exit_code, 0);
  EXPECT_EQ(report.text, "");
}

TEST(Report, TheEarliestFailureIsTheCause) {
  launch::RankRecord cause = ended(3, {.code = 7}, 5);
  cause.end->last_lines = "a\nb";
  const launch::Report report = launch::make_report(
      "lockstep run",
      {ended(0, {.code = 1}, 9), ended(1, {}, 1), ended(2, {.signal = SIGTERM}, 20, true), cause},
      {});
  EXPECT_EQ(report.exit_code, 7);
  EXPECT_EQ(report.text,
            "lockstep run: rank 3 (node 0, local rank 3, pid 103) failed: exit code 7\n"
            "  its last output:\n    a\n    b\n"
            "  3 other ranks: 1 exited with 0, 1 failed too (rank 0: exit code 1), 1 stopped by "
            "lockstep\n");
}

TEST(Report, LogsAreCalledWholeOnlyIfTheyAre) {
  launch::RankRecord rank = ended(0, {.code = 1}, 1);
  rank.end->log_folder = "/logs/rank_0";
  EXPECT_THAT(launch::make_report("lockstep run", {rank}, {}).text,
              HasSubstr("  its log files: /logs/rank_0\n"));
  rank.end->is_log_whole = true;
  EXPECT_THAT(launch::make_report("lockstep run", {rank}, {}).text,
              HasSubstr("  all of its output: /logs/rank_0\n"));
}

TEST(Report, WhoWasKilledAfterWhichGraceIsSaid) {
  const std::vector<launch::RankRecord> ranks{ended(0, {.signal = SIGTERM}, 1, true),
                                              ended(1, {.signal = SIGKILL}, 2, true),
                                              ended(2, {.signal = SIGKILL}, 3, true)};
  EXPECT_EQ(launch::make_report("lockstep run", ranks,
                                {.signal = SIGTERM, .grace = std::chrono::seconds(25)})
                .text,
            "lockstep run: stopped by SIGTERM\n"
            "  3 ranks: 3 stopped by lockstep (ranks 1, 2 killed after the grace of 25 s; "
            "--stop-grace gives more)\n");
  EXPECT_THAT(
      launch::make_report(
          "lockstep run", ranks,
          {.signal = SIGINT, .grace = std::chrono::seconds(25), .was_cut_short = true})
          .text,
      HasSubstr("(ranks 1, 2 killed before the grace of 25 s was over, as it was asked to)"));
}

TEST(Report, AKillThatWasNotOursIsExplained) {
  const launch::Report report =
      launch::make_report("lockstep run", {ended(0, {.signal = SIGKILL}, 1)}, {});
  EXPECT_EQ(report.exit_code, 137);
  EXPECT_THAT(report.text, HasSubstr("out of memory?"));
}

TEST(Report, WhatStoppedTheJobGoesBeforeWhatFollowed) {
  const std::vector<launch::RankRecord> ranks{ended(0, {.code = 1}, 1),
                                              launch::RankRecord{.rank = 1}};
  const launch::Report told = launch::make_report("lockstep run", ranks, {.signal = SIGTERM});
  EXPECT_EQ(told.exit_code, 143);
  EXPECT_EQ(told.text,
            "lockstep run: stopped by SIGTERM\n"
            "  2 ranks: 1 failed too (rank 0: exit code 1), 1 killed without a report\n");
  const launch::Report broken =
      launch::make_report("lockstep run", ranks, {.broken = "the agent", .broken_code = 137});
  EXPECT_EQ(broken.exit_code, 137);
  const launch::Report unstarted = launch::make_report(
      "lockstep run", ranks, {.cannot_start = "cannot start x", .cannot_start_code = 127});
  EXPECT_EQ(unstarted.exit_code, 127);
  EXPECT_EQ(unstarted.text, "lockstep run: cannot start x\n");
}

TEST(CannotStart, SaysWhatMayBeMeant) {
  EXPECT_THAT(launch::cannot_start_text("my_program", ENOENT), HasSubstr("./my_program"));
  EXPECT_THAT(launch::cannot_start_text("/etc/passwd", EACCES), HasSubstr("chmod +x"));
  EXPECT_THAT(launch::cannot_start_text("/etc/passwd", ENOENT), HasSubstr("interpreter"));
}

}  // namespace
}  // namespace lockstep

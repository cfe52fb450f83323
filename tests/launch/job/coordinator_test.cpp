#include <cerrno>
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "launch/job/coordinator_fixture.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(JobTest, StartsWhenAllAreThereAndEndsWhenAllAreGone) {
  begin({.min_nodes = 2, .max_nodes = 2, .store = "10.0.0.1:5"});
  join(0);
  EXPECT_EQ(num_generations_, 0);
  join(7, {.num_nodes = 2, .master_port = 3});
  ASSERT_EQ(num_generations_, 1);
  EXPECT_EQ(place(0).first_rank, 0);
  EXPECT_EQ(place(7).first_rank, 2);
  EXPECT_EQ(place(7).first_node, 1);
  EXPECT_EQ(place(7).world_size, 6);
  EXPECT_EQ(place(7).num_nodes, 3);
  EXPECT_EQ(place(7).store, "10.0.0.1:5");
  EXPECT_EQ(place(7).master_addr, "10.0.0.0") << "rank 0's host";
  end_rank(0, 0, 0);
  idle(0);
  EXPECT_FALSE(coordinator_->is_over());
  idle(7);
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(coordinator_->report().exit_code, 0);
  EXPECT_EQ(count(7, launch::HeadSays::End), 1);
}

TEST_F(JobTest, TheRankThatGaveUpFirstIsTheReportsThoughItsVictimsEndBefore) {
  begin({.min_nodes = 2, .max_nodes = 2});
  join(0);
  join(1);
  first_to_fail_ = 1;
  end_rank(0, 0, 5);
  end_rank(1, 3, 6);
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 0) << "it has a moment to end by itself";
  now_ += 500ms;
  end_rank(0, 1, 7);
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 1);
  EXPECT_EQ(count(1, launch::HeadSays::Stop), 1);
  idle(0);
  idle(1);
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(coordinator_->report().exit_code, 7);
  EXPECT_THAT(coordinator_->report().text, HasSubstr("rank 1 (host0, node 0, local rank 1"));
  EXPECT_THAT(coordinator_->report().text, HasSubstr("last words of 1"));
  EXPECT_THAT(coordinator_->report().text, HasSubstr("2 failed too (rank 0: exit code 5; rank 3"));
}

TEST_F(JobTest, ARankThatGaveUpFirstButDoesNotEndIsNotWaitedForLong) {
  begin({.min_nodes = 1, .max_nodes = 1});
  join(0);
  first_to_fail_ = 1;
  EXPECT_TRUE(coordinator_->next_tick().is_never());
  end_rank(0, 0, 5);
  EXPECT_LE(coordinator_->next_tick().when(), now_ + 2s) << "nothing else would wake the head";
  pass(1500ms, {0});
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 0);
  pass(1s, {0});
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 1);
  idle(0);
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(coordinator_->report().exit_code, 5);
}

TEST_F(JobTest, ANonsensicalFirstRankIsIgnored) {
  for (const int rank : {-1, 2, 1000000}) {
    begin({.min_nodes = 1, .max_nodes = 1});
    join(0);
    first_to_fail_ = rank;
    sent_.clear();
    end_rank(0, 0, 5);
    EXPECT_EQ(count(0, launch::HeadSays::Stop), 1);
  }
}

TEST_F(JobTest, TheEarliestFailureOfAllHostsIsTheReports) {
  begin({.min_nodes = 2, .max_nodes = 2});
  join(0);
  join(1);
  now_ += 1s;
  end_rank(0, 1, 5, 10ms);
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 1);
  EXPECT_EQ(count(1, launch::HeadSays::Stop), 1);
  now_ += 5ms;
  end_rank(1, 3, 7, 200ms);  // noticed before, heard of later
  idle(0);
  idle(1);
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(coordinator_->report().exit_code, 7);
  EXPECT_THAT(coordinator_->report().text, HasSubstr("rank 3 (host1, node 1, local rank 1"));
  EXPECT_THAT(coordinator_->report().text, HasSubstr("last words of 3"));
  EXPECT_THAT(sent_[1].back().text, HasSubstr("rank 3"));
  join(2);
  EXPECT_EQ(sent_[2].back().kind, launch::HeadSays::End) << "too late: it ends as all do";
  EXPECT_EQ(sent_[2].back().code, 7);
}

TEST_F(JobTest, AFailureSpendsARestart) {
  begin({.max_restarts = 1});
  join(0);
  end_rank(0, 1, 5);
  EXPECT_EQ(num_generations_, 1) << "not before the old ranks are gone";
  idle(0);
  ASSERT_EQ(num_generations_, 2);
  EXPECT_EQ(place(0).generation, 1);
  EXPECT_EQ(place(0).restart_count, 1);
  EXPECT_THAT(said_, HasSubstr("rank 1"));
  EXPECT_THAT(said_, HasSubstr("restart 1 of 1"));
  hear(0, {.kind = launch::MemberSays::Ended,
           .generation = 0,
           .rank = 0,
           .end = {.status = {.code = 9}}});
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 1) << "what an earlier start says does not count";
  end_rank(0, 0, 6);
  idle(0);
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(coordinator_->report().exit_code, 6);
}

TEST_F(JobTest, ASilentHostIsLostAndNamed) {
  begin({.min_nodes = 2, .max_nodes = 2});
  join(0);
  join(1);
  pass(2s, {0, 1});
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 0);
  pass(3s, {0});
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 1);
  EXPECT_THAT(hung_up_, ::testing::Contains(1u));
  idle(0);
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_NE(coordinator_->report().exit_code, 0);
  EXPECT_THAT(coordinator_->report().text, HasSubstr("node 1 (host1"));
  EXPECT_THAT(coordinator_->report().text, HasSubstr("lost: not heard of for 2.5 s"));
}

TEST_F(JobTest, ASuspectedHostIsNotLostBeforeTheTimeTheUserSet) {
  begin({.min_nodes = 2, .max_nodes = 2, .lost_after = 30s});
  join(0);
  join(1);
  pass(29s, {0});
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 0);
  EXPECT_THAT(said_, HasSubstr("node 1 (host1, pid 0) has not been heard of for 2.5 s; it is lost "
                               "after 30 s\n"));
  pass(1s, {0, 1});
  EXPECT_THAT(said_, HasSubstr("node 1 (host1, pid 0) is back\n"));
  pass(2s, {0, 1});
  pass(31s, {0});
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 1);
}

TEST_F(JobTest, ARefusedHostIsNamedByTheHeadToo) {
  begin({.min_nodes = 2, .max_nodes = 2});
  join(0);
  join(1, {.what = "something else"});
  EXPECT_THAT(said_, HasSubstr("refused the node on host1 (pid 0): it runs something else"));
}

TEST_F(JobTest, AHeadThatSleptForgives) {
  begin({.min_nodes = 2, .max_nodes = 2});
  join(0);
  join(1);
  now_ += 60s;
  coordinator_->tick(now_);
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 0);
  pass(3s, {0});
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 1) << "but not for ever";
}

TEST_F(JobTest, AnElasticJobGoesOnWithFewerAndGrowsAgain) {
  begin({.min_nodes = 1, .max_nodes = 2, .last_call = 5s});
  join(0);
  EXPECT_EQ(num_generations_, 0) << "the last call has not passed";
  join(1);
  ASSERT_EQ(num_generations_, 1);
  coordinator_->lose(1, "gone", now_);
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 1);
  idle(0);
  ASSERT_EQ(num_generations_, 2) << "at once: who is there is known";
  EXPECT_EQ(place(0).world_size, 2);
  EXPECT_EQ(place(0).restart_count, 0) << "a lost host costs an elastic job no restart";
  join(2);
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 2);
  idle(0);
  ASSERT_EQ(num_generations_, 3);
  EXPECT_EQ(place(0).first_rank, 0) << "who was there keeps its place";
  EXPECT_EQ(place(2).first_rank, 2);
  EXPECT_EQ(place(2).world_size, 4);
}

TEST_F(JobTest, AnElasticJobStartsWithTheLeastAfterTheLastCall) {
  begin({.min_nodes = 1, .max_nodes = 3, .last_call = 5s});
  join(0);
  pass(4s, {0});
  EXPECT_EQ(num_generations_, 0);
  pass(2s, {0});
  EXPECT_EQ(num_generations_, 1);
}

TEST_F(JobTest, AFixedJobWithRestartsWaitsForTheLostHost) {
  begin({.min_nodes = 2, .max_nodes = 2, .max_restarts = 1});
  join(0, {.node_rank = 0});
  join(1, {.node_rank = 1});
  coordinator_->lose(1, "its connection ended", now_);
  idle(0);
  EXPECT_EQ(num_generations_, 1);
  EXPECT_THAT(said_, HasSubstr("waiting up to 600 s for 1 more node"));
  join(2, {.node_rank = 1});
  EXPECT_EQ(num_generations_, 2);
  EXPECT_EQ(place(2).first_rank, 2);
}

TEST_F(JobTest, NodesThatNeverComeAreATimeout) {
  begin({.min_nodes = 2, .max_nodes = 2, .join_timeout = 3s});
  join(0);
  pass(4s, {0});
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(coordinator_->report().exit_code, 1);
  EXPECT_THAT(coordinator_->report().text, HasSubstr("only 1 of 2 nodes came together within 3 s"));
}

TEST_F(JobTest, StrangersToTheJobAreRefusedWithTheReason) {
  begin({.min_nodes = 2, .max_nodes = 2});
  const auto refusal = [&](launch::MemberId id, const launch::MemberInfo& info) {
    join(id, info);
    return sent_[id].empty() || sent_[id].back().kind != launch::HeadSays::Refused
               ? "let in"
               : sent_[id].back().text;
  };
  EXPECT_EQ(refusal(0, {.node_rank = 0, .what = "a"}), "let in");
  EXPECT_THAT(refusal(3, {.what = "b"}), HasSubstr("it runs something else (b)"));
  EXPECT_THAT(refusal(4, {.node_rank = 0, .what = "a"}),
              HasSubstr("node rank 0 is taken by host0"));
  EXPECT_THAT(refusal(5, {.node_rank = 2, .what = "a"}), HasSubstr("node rank 2 is not in [0, 2)"));
  EXPECT_EQ(refusal(6, {.node_rank = 1, .what = "a"}), "let in");
  EXPECT_THAT(refusal(7, {.what = "a"}),
              HasSubstr("the job has its 2 nodes already: host0, host6"));
  EXPECT_EQ(num_generations_, 1) << "and the job does not notice";
}

TEST_F(JobTest, FixedRanksOrderTheNodes) {
  begin({.min_nodes = 3, .max_nodes = 3});
  join(0, {.node_rank = 2});
  join(1, {.node_rank = 0});
  join(2, {.node_rank = 1});
  EXPECT_EQ(place(1).first_rank, 0);
  EXPECT_EQ(place(2).first_rank, 2);
  EXPECT_EQ(place(0).first_rank, 4);
}

TEST_F(JobTest, RanksGetTheSignalThatCame) {
  for (const int signal : {SIGINT, SIGHUP, SIGQUIT, SIGTERM}) {
    sent_.clear();
    begin({});
    join(0);
    hear(0, {.kind = launch::MemberSays::Signal, .signal = signal});
    ASSERT_EQ(count(0, launch::HeadSays::Stop), 1);
    const launch::HeadMessage stop = launch::HeadMessage::from_json(sent_[0].back().to_json());
    EXPECT_EQ(stop.kind, launch::HeadSays::Stop);
    EXPECT_EQ(stop.signal, signal);
  }
}

TEST_F(JobTest, ARestartSaysThatTheOthersAreStopped) {
  begin({.max_restarts = 2});
  join(0, {.num_nodes = 2});
  end_rank(0, 3, 7);
  EXPECT_NE(said_.find("3 other ranks: 3 stopped by lockstep"), std::string::npos) << said_;
  idle(0);
  said_.clear();
  for (const int rank : {0, 1, 2, 3}) {
    hear(0, {.kind = launch::MemberSays::Started, .rank = rank, .pid = 100 + rank});
  }
  hear(
      0,
      {.kind = launch::MemberSays::Failed, .rank = 2, .status = {.code = 137}, .text = "guardian"});
  EXPECT_NE(said_.find("2 stopped by lockstep, 2 killed without a report"), std::string::npos)
      << said_;
}

TEST_F(JobTest, ARestartDoesNotSayThatTheRanksOfALostHostAreStopped) {
  begin({.min_nodes = 2, .max_nodes = 2, .max_restarts = 1});
  join(0);
  join(1);
  for (const int rank : {0, 1, 2, 3}) {
    hear(rank / 2, {.kind = launch::MemberSays::Started, .rank = rank, .pid = 100 + rank});
  }
  coordinator_->lose(1, "its connection ended", now_);
  EXPECT_NE(said_.find("2 stopped by lockstep, 2 killed without a report"), std::string::npos)
      << said_;
}

TEST_F(JobTest, ASignalStopsAllAndASecondInterruptKills) {
  begin({});
  join(0);
  hear(0, {.kind = launch::MemberSays::Signal, .signal = SIGINT});
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 1);
  hear(0, {.kind = launch::MemberSays::Signal, .signal = SIGINT});
  EXPECT_EQ(count(0, launch::HeadSays::Kill), 1);
  idle(0);
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(coordinator_->report().exit_code, 130);
}

TEST_F(JobTest, RanksThatListenAreAskedBeforeTheyAreStopped) {
  begin({.stop_grace = 2s});
  num_listeners_ = 2;
  join(0);
  hear(0, {.kind = launch::MemberSays::Signal, .signal = SIGUSR1});
  EXPECT_EQ(asked_, "checkpoint ");
  EXPECT_EQ(count(0, launch::HeadSays::Checkpoint), 1);
  EXPECT_EQ(count(0, launch::HeadSays::Hurry), 0);
  hear(0, {.kind = launch::MemberSays::Signal, .signal = SIGTERM});
  EXPECT_EQ(asked_, "checkpoint stop ");
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 0);
  EXPECT_EQ(count(0, launch::HeadSays::Hurry), 1) << "nobody may hold up what they write";
  pass(3s, {0});
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 1) << "they had their time";
  idle(0);
  EXPECT_EQ(coordinator_->report().exit_code, 143);
}

TEST_F(JobTest, AProgramThatCannotStartIsNotTriedAgain) {
  begin({.max_restarts = 5});
  join(0);
  hear(0, {.kind = launch::MemberSays::CannotStart, .rank = 0, .status = {.code = ENOENT}});
  EXPECT_EQ(count(0, launch::HeadSays::Kill), 1);
  idle(0);
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(coordinator_->report().exit_code, 127);
}

TEST_F(JobTest, ASignalBeforeTheStartEndsTheJob) {
  begin({.min_nodes = 2, .max_nodes = 2});
  join(0);
  hear(0, {.kind = launch::MemberSays::Signal, .signal = SIGTERM});
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(coordinator_->report().exit_code, 143);
}

TEST_F(JobTest, AMemberThatSpeaksOfForeignRanksIsLost) {
  begin({.min_nodes = 2, .max_nodes = 2});
  join(0);
  join(1);
  hear(1, {.kind = launch::MemberSays::Started, .rank = 99});
  EXPECT_THAT(hung_up_, ElementsAre(1u));
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 1);
  EXPECT_EQ(count(1, launch::HeadSays::Stop), 0) << "it is no longer spoken to";
  EXPECT_FALSE(coordinator_->is_over());
  idle(0);
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(coordinator_->report().exit_code, 1);
  EXPECT_EQ(coordinator_->report().text,
            "lockstep run: node 1 (host1, pid 0) is lost: it speaks of rank 99, which is not in "
            "the job; its ranks are counted as dead\n");
}

TEST_F(JobTest, TheLastCallIsOffWhenTooFewAreLeft) {
  begin({.min_nodes = 2, .max_nodes = 3, .join_timeout = 60s, .last_call = 5s});
  join(0);
  join(1);
  pass(4s, {0, 1});
  coordinator_->lose(1, "its connection ended", now_);
  EXPECT_THAT(said_, HasSubstr("host1 left before the job began"));
  pass(10s, {0});
  EXPECT_EQ(num_generations_, 0) << "one node is less than the least";
  join(2);
  pass(4s, {0, 2});
  EXPECT_EQ(num_generations_, 0) << "a new last call";
  pass(2s, {0, 2});
  EXPECT_EQ(num_generations_, 1);
}

}  // namespace
}  // namespace lockstep

// Signals and losses while a job starts anew, stops, or waits for a host.

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

TEST_F(JobTest, ASignalDuringARestartEndsTheJobWithItsCode) {
  begin({.min_nodes = 1, .max_nodes = 2, .last_call = 0s});
  join(0);
  join(1);  // all are started anew, though nothing failed
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 1);
  hear(0, {.kind = launch::MemberSays::Signal, .signal = SIGTERM});
  EXPECT_THAT(said_, HasSubstr("SIGTERM: the ranks end and are not started anew"));
  EXPECT_EQ(count(0, launch::HeadSays::Kill), 0);
  idle(0);
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(num_generations_, 1);
  EXPECT_EQ(coordinator_->report().exit_code, 143) << "not the 0 of ranks that were stopped";
}

TEST_F(JobTest, AFirstInterruptDuringARestartDoesNotKill) {
  begin({.max_restarts = 1});
  join(0);
  end_rank(0, 1, 5);
  hear(0, {.kind = launch::MemberSays::Signal, .signal = SIGINT});
  EXPECT_EQ(count(0, launch::HeadSays::Kill), 0);
  hear(0, {.kind = launch::MemberSays::Signal, .signal = SIGINT});
  EXPECT_EQ(count(0, launch::HeadSays::Kill), 1);
  idle(0);
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(coordinator_->report().exit_code, 130);
}

TEST_F(JobTest, ASignalWhileWaitingForALostHostEndsTheJob) {
  begin({.min_nodes = 2, .max_nodes = 2, .max_restarts = 1});
  join(0);
  join(1);
  coordinator_->lose(1, "its connection ended", now_);
  idle(0);
  hear(0, {.kind = launch::MemberSays::Signal, .signal = SIGTERM});
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(coordinator_->report().exit_code, 143);
}

TEST_F(JobTest, AHostThatCannotComeBackIsNotWaitedFor) {
  begin({.min_nodes = 2, .max_nodes = 2, .max_restarts = 1});
  join(0);
  join(1);
  coordinator_->lose(1, "its connection ended", now_);
  coordinator_->abandon("the node on b ended: exit code 1", now_);  // its ssh has ended
  idle(0);
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(coordinator_->report().exit_code, 1);
  EXPECT_THAT(coordinator_->report().text, HasSubstr("the node on b ended: exit code 1"));
}

TEST_F(JobTest, AHostThatJoinsAnewTakesItsOwnPlace) {
  begin({.min_nodes = 2, .max_nodes = 2, .max_restarts = 1});
  join(0, {.node_rank = 0});
  const launch::MemberInfo b{.host = "b", .address = "10.0.0.1", .pid = 7, .node_rank = 1};
  join(1, b);
  join(2, {.host = "c", .pid = 7, .node_rank = 1});
  EXPECT_EQ(sent_[2].back().kind, launch::HeadSays::Refused) << "another process is not let in";
  join(3, b);  // the old connection's end is still under way
  EXPECT_EQ(count(3, launch::HeadSays::Refused), 0);
  EXPECT_THAT(hung_up_, ElementsAre(2u, 1u));
  coordinator_->lose(1, "its connection ended", now_);
  idle(0);
  EXPECT_EQ(num_generations_, 2);
  EXPECT_EQ(place(3).first_rank, 2);
}

TEST_F(JobTest, AMemberThatJoinsTwiceIsLost) {
  begin({.min_nodes = 1, .max_nodes = 3, .last_call = 0s});
  join(0);
  join(1);
  idle(0);
  ASSERT_EQ(num_generations_, 2);
  join(1);
  EXPECT_THAT(hung_up_, ElementsAre(1u));
  EXPECT_THAT(said_, HasSubstr("is lost: it joined twice"));
  EXPECT_THAT(said_, HasSubstr("restarting all ranks without it"));
}

TEST_F(JobTest, ARankThatFailsWhileAskedToEndDoesNotChangeTheVerdict) {
  begin({.max_restarts = 3, .stop_grace = 2s});
  num_listeners_ = 2;
  join(0);
  hear(0, {.kind = launch::MemberSays::Signal, .signal = SIGTERM});
  end_rank(0, 1, 5);
  pass(3s, {0});
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 1);
  idle(0);
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(num_generations_, 1);
  EXPECT_EQ(coordinator_->report().exit_code, 143);
  EXPECT_THAT(coordinator_->report().text, HasSubstr("rank 1: exit code 5"));
}

TEST_F(JobTest, HostsLostWhileStoppingAreNotWaitedFor) {
  begin({.min_nodes = 2, .max_nodes = 2, .stop_grace = 2s});
  num_listeners_ = 4;
  join(0);
  join(1);
  hear(0, {.kind = launch::MemberSays::Signal, .signal = SIGTERM});
  coordinator_->lose(1, "its connection ended", now_);
  EXPECT_FALSE(coordinator_->is_over());
  idle(0);
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(coordinator_->report().exit_code, 143);
}

TEST_F(JobTest, ARankThatFailsForALostHostDoesNotEndAnElasticJob) {
  begin({.min_nodes = 1, .max_nodes = 2});
  join(0);
  join(1);
  end_rank(0, 0, 1);  // its peer is gone, and it knows before the head does
  idle(0);
  EXPECT_FALSE(coordinator_->is_over()) << "the other host has not answered";
  pass(3s, {0});
  EXPECT_EQ(num_generations_, 2);
  EXPECT_EQ(place(0).world_size, 2);
}

TEST_F(JobTest, ANodeOfAnElasticJobCanBeTakenAway) {
  begin({.min_nodes = 1, .max_nodes = 2});
  join(0);
  join(1);
  hear(1, {.kind = launch::MemberSays::Signal, .signal = SIGTERM});
  EXPECT_EQ(count(1, launch::HeadSays::End), 1);
  EXPECT_EQ(sent_[1].back().code, 143);
  idle(0);
  EXPECT_EQ(num_generations_, 2);
  EXPECT_EQ(place(0).world_size, 2);
  hear(0, {.kind = launch::MemberSays::Signal, .signal = SIGTERM});
  idle(0);
  ASSERT_TRUE(coordinator_->is_over()) << "the head's own is the job's";
  EXPECT_EQ(coordinator_->report().exit_code, 143);
}

TEST_F(JobTest, WhoJoinsAJobThatEndsHearsOfTheEnd) {
  begin({.min_nodes = 1, .max_nodes = 2, .last_call = 0s});
  join(0);
  end_rank(0, 1, 5);
  join(1);
  idle(0);
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(count(1, launch::HeadSays::Start), 0);
  EXPECT_EQ(count(1, launch::HeadSays::End), 1);
  join(2);
  EXPECT_EQ(sent_[2].back().kind, launch::HeadSays::End);
  EXPECT_EQ(sent_[2].back().code, 5);
}

}  // namespace
}  // namespace lockstep

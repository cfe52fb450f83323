// Nodes whose files are still on the way.

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/job/coordinator_fixture.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST_F(JobTest, StartsWhenTheFilesOfAllNodesAreThere) {
  begin({.min_nodes = 2, .max_nodes = 2});
  join(0, {.is_staging = true});
  join(7, {.is_staging = true});
  pass(700s, {0, 7});  // longer than joining may take
  EXPECT_EQ(num_generations_, 0);
  EXPECT_FALSE(coordinator_->is_over());
  hear(0, {.kind = launch::MemberSays::Staged});
  EXPECT_EQ(num_generations_, 0);
  hear(7, {.kind = launch::MemberSays::Staged});
  EXPECT_EQ(num_generations_, 1);
}

TEST_F(JobTest, DoesNotSpinWhileFilesAreOnTheWay) {
  begin({.min_nodes = 1, .max_nodes = 1});
  join(0, {.is_staging = true});
  now_ += 60s;  // past the last call
  coordinator_->tick(now_);
  EXPECT_TRUE(coordinator_->next_tick().is_never());
}

TEST_F(JobTest, EndsWithTheSentenceOfWhoCannotStage) {
  begin({.min_nodes = 2, .max_nodes = 2, .max_restarts = 3});
  join(0);
  join(7, {.is_staging = true});
  hear(7, {.kind = launch::MemberSays::CannotStage,
           .status = {.code = 1},
           .text = "cannot stage on b: x"});
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(coordinator_->report().text, "lockstep run: cannot stage on b: x\n");
  EXPECT_EQ(coordinator_->report().exit_code, 1);
  EXPECT_EQ(count(0, launch::HeadSays::End), 1);
}

TEST_F(JobTest, RunsOnWhileALateNodeStages) {
  begin({.min_nodes = 1, .max_nodes = 3, .last_call = 1s});
  join(0);
  pass(2s, {0});
  ASSERT_EQ(num_generations_, 1);
  join(7, {.is_staging = true});
  join(8, {.is_staging = true});
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 0);
  hear(8, {.kind = launch::MemberSays::CannotStage, .status = {.code = 1}, .text = "no room"});
  EXPECT_EQ(count(8, launch::HeadSays::Refused), 1);
  EXPECT_THAT(said_, HasSubstr("host8 left before it took part: no room"));
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 0);
  hear(7, {.kind = launch::MemberSays::Staged});
  EXPECT_EQ(count(0, launch::HeadSays::Stop), 1);
  idle(0);
  pass(2s, {0, 7});
  EXPECT_EQ(num_generations_, 2);
  EXPECT_EQ(place(7).world_size, 4);
}

TEST_F(JobTest, CanBeStoppedWhileItStages) {
  begin({.min_nodes = 1, .max_nodes = 1});
  join(0, {.is_staging = true});
  coordinator_->signal(SIGINT, now_);
  ASSERT_TRUE(coordinator_->is_over());
  EXPECT_EQ(coordinator_->report().exit_code, 130);
}

}  // namespace
}  // namespace lockstep

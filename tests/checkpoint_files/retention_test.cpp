#include "checkpoint_files/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<checkpoint_files::KeptCheckpoint> hourly(int count) {
  std::vector<checkpoint_files::KeptCheckpoint> checkpoints;
  for (int i = 0; i < count; ++i) {
    checkpoints.push_back({.name = std::to_string(i),
                           .sequence = static_cast<uint64_t>(i),
                           .created_s = 1000 + 3600 * i});
  }
  return checkpoints;
}

TEST(Retention, KeepsTheLast) {
  EXPECT_THAT(checkpoint_files::superfluous(hourly(5), {.keep_last = 2}),
              ElementsAre("0", "1", "2"));
  EXPECT_THAT(checkpoint_files::superfluous(hourly(2), {.keep_last = 2}), IsEmpty());
  EXPECT_THAT(checkpoint_files::superfluous({}, {.keep_last = 1}), IsEmpty());
}

TEST(Retention, TheLastAreThoseSavedLast) {
  auto checkpoints = hourly(3);
  checkpoints[0].sequence = 9;  // its step was reached again, by a run that began anew
  EXPECT_THAT(checkpoint_files::superfluous(checkpoints, {.keep_last = 1}), ElementsAre("1", "2"));
}

TEST(Retention, KeepsTheBest) {
  auto checkpoints = hourly(4);
  checkpoints[0].score = 0.5;
  checkpoints[1].score = 0.9;
  checkpoints[2].score = 0.9;
  EXPECT_THAT(checkpoint_files::superfluous(checkpoints, {.keep_last = 1}), ElementsAre("0", "1"));
  EXPECT_THAT(checkpoint_files::superfluous(checkpoints, {.keep_last = 1, .keep_best = false}),
              ElementsAre("0", "1", "2"));
  EXPECT_EQ(checkpoint_files::best_of(checkpoints)->name, "2");
  EXPECT_EQ(checkpoint_files::best_of(hourly(2)), nullptr);
}

TEST(Retention, KeepsOnePerSoMuchTime) {
  EXPECT_THAT(checkpoint_files::superfluous(hourly(6),
                                            {.keep_last = 1, .keep_every = std::chrono::hours(2)}),
              ElementsAre("1", "3"));
}

}  // namespace
}  // namespace lockstep

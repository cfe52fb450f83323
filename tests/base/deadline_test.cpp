#include "base/deadline.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

TEST(Deadline, NeverHasNoEnd) {
  const Deadline never = Deadline::never();
  EXPECT_FALSE(never.expired());
  EXPECT_EQ(never.poll_ms(), -1);
  EXPECT_EQ(never.remaining(), std::chrono::nanoseconds::max());
}

TEST(Deadline, AHugeDurationIsNever) {
  EXPECT_TRUE(Deadline::after(std::chrono::nanoseconds::max()).is_never());
}

TEST(Deadline, APastOneHasExpiredAndNothingRemains) {
  const Deadline past = Deadline::after(-1s);
  EXPECT_TRUE(past.expired());
  EXPECT_EQ(past.remaining(), 0ns);
  EXPECT_EQ(past.poll_ms(), 0);
}

TEST(Deadline, PollRoundsUpSoThatTheLastMillisecondIsSlept) {
  EXPECT_EQ(Deadline::after(1h).poll_ms(), 3600000);
  EXPECT_GE(Deadline::after(300us).poll_ms(), 1);
}

TEST(Deadline, EarlierTakesTheOneThatPassesFirst) {
  const Deadline soon = Deadline::after(1s);
  EXPECT_EQ(Deadline::never().earlier(soon).when(), soon.when());
  EXPECT_EQ(soon.earlier(Deadline::never()).when(), soon.when());
}

TEST(Deadline, DurationsReadWell) {
  EXPECT_EQ(to_text(1500ms), "1.5 s");
  EXPECT_EQ(to_text(250ms), "250 ms");
  EXPECT_EQ(to_text(30min), "1800 s");
}

}  // namespace
}  // namespace lockstep

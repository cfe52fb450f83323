#include "base/deadline.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

TEST(Deadline, NeverHasNoEnd) {
  const base::Deadline never = base::Deadline::never();
  EXPECT_FALSE(never.expired());
  EXPECT_EQ(never.poll_ms(), -1);
  EXPECT_EQ(never.remaining(), std::chrono::nanoseconds::max());
}

TEST(Deadline, AHugeDurationIsNever) {
  EXPECT_TRUE(base::Deadline::after(std::chrono::nanoseconds::max()).is_never());
}

TEST(Deadline, APastOneHasExpiredAndNothingRemains) {
  const base::Deadline past = base::Deadline::after(-1s);
  EXPECT_TRUE(past.expired());
  EXPECT_EQ(past.remaining(), 0ns);
  EXPECT_EQ(past.poll_ms(), 0);
}

TEST(Deadline, PollRoundsUpSoThatTheLastMillisecondIsSlept) {
  EXPECT_EQ(base::Deadline::after(1h).poll_ms(), 3600000);
  EXPECT_GE(base::Deadline::after(300us).poll_ms(), 1);
}

TEST(Deadline, EarlierTakesTheOneThatPassesFirst) {
  const base::Deadline soon = base::Deadline::after(1s);
  EXPECT_EQ(base::Deadline::never().earlier(soon).when(), soon.when());
  EXPECT_EQ(soon.earlier(base::Deadline::never()).when(), soon.when());
}

TEST(Deadline, DurationsReadWell) {
  EXPECT_EQ(base::to_text(1500ms), "1.5 s");
  EXPECT_EQ(base::to_text(250ms), "250 ms");
  EXPECT_EQ(base::to_text(30min), "1800 s");
}

}  // namespace
}  // namespace lockstep

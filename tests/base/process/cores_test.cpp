#include "base/process/cores.h"

#include <thread>

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::ElementsAre;

TEST(Cores, AMoveChangesTheCoreAndNotWhatIsAllowed) {
  std::thread([] {
    const std::vector<int> before = base::usable_cores();
    ASSERT_FALSE(before.empty());
    for (const int core : before) {
      base::move_to_core(core);
      EXPECT_EQ(base::usable_cores(), before);
    }
    base::move_to_core(before.back() + 1);  // not allowed: stays
    EXPECT_EQ(base::usable_cores(), before);
  }).join();
}

TEST(Cores, AThreadThatStaysMayUseNoOther) {
  std::thread([] {
    const int last = base::usable_cores().back();
    EXPECT_TRUE(base::stay_on_core(last));
    EXPECT_THAT(base::usable_cores(), ElementsAre(last));
    EXPECT_EQ(base::num_usable_cores(), 1);
    EXPECT_EQ(base::current_core(), last);
  }).join();
}

TEST(Cores, ACoreThatIsNotThereChangesNothing) {
  std::thread([] {
    const std::vector<int> before = base::usable_cores();
    EXPECT_FALSE(base::stay_on_core(1023));
    EXPECT_EQ(base::usable_cores(), before);
  }).join();
}

}  // namespace
}  // namespace lockstep

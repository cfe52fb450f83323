#include "base/process/cores.h"

#include <thread>

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::ElementsAre;

TEST(Cores, AMoveChangesTheCoreAndNotWhatIsAllowed) {
  std::thread([] {
    const std::vector<int> before = usable_cores();
    ASSERT_FALSE(before.empty());
    for (const int core : before) {
      move_to_core(core);
      EXPECT_EQ(usable_cores(), before);
    }
    move_to_core(before.back() + 1);  // not allowed: stays
    EXPECT_EQ(usable_cores(), before);
  }).join();
}

TEST(Cores, AThreadThatStaysMayUseNoOther) {
  std::thread([] {
    const int last = usable_cores().back();
    EXPECT_TRUE(stay_on_core(last));
    EXPECT_THAT(usable_cores(), ElementsAre(last));
    EXPECT_EQ(num_usable_cores(), 1);
    EXPECT_EQ(current_core(), last);
  }).join();
}

TEST(Cores, ACoreThatIsNotThereChangesNothing) {
  std::thread([] {
    const std::vector<int> before = usable_cores();
    EXPECT_FALSE(stay_on_core(1023));
    EXPECT_EQ(usable_cores(), before);
  }).join();
}

}  // namespace
}  // namespace lockstep

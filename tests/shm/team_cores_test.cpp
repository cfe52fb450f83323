#include <thread>

#include <gtest/gtest.h>

#include "base/cores.h"
#include "shm/thread_team.h"

namespace lockstep::shm::test {
namespace {

TEST(TeamCores, RanksBoundToACoreEachHaveThemAllTogether) {
  const std::vector<int> cores = usable_cores();
  const int first = cores.front(), last = cores.back();  // the same where there is only one
  Arenas arenas(2);
  std::unique_ptr<Team> teams[2];
  for (int rank = 0; rank < 2; ++rank) {
    std::thread([&] {
      ASSERT_TRUE(stay_on_core(rank == 0 ? first : last));
      teams[rank] = std::make_unique<Team>(rank, arenas.addresses());
      EXPECT_EQ(teams[rank]->num_cores(), 1) << "its own, before it has met the other";
    }).join();
  }
  std::thread other([&] { teams[1]->run({.kind = Kind::Barrier}); });
  teams[0]->run({.kind = Kind::Barrier});
  other.join();
  EXPECT_EQ(teams[0]->num_cores(), first == last ? 1 : 2);
  EXPECT_EQ(teams[1]->num_cores(), first == last ? 1 : 2);
  // And they act on it: from the second operation on they meet by marks, not at the gate.
  const auto& words = *reinterpret_cast<const Words<Platform>*>(arenas.addresses()[0]);
  EXPECT_EQ(words.arrivals.value.load(), 2u);
  std::thread again([&] { teams[1]->run({.kind = Kind::Barrier}); });
  teams[0]->run({.kind = Kind::Barrier});
  again.join();
  EXPECT_EQ(words.arrivals.value.load(), first == last ? 4u : 2u);
}

TEST(TeamCores, RanksWithACoreEachSpinAndOthersYield) {
  EXPECT_FALSE(WaitPolicy::for_ranks(4, 16).yields);
  EXPECT_FALSE(WaitPolicy::for_ranks(4, 4).yields);
  EXPECT_TRUE(WaitPolicy::for_ranks(4, 3).yields);
}

}  // namespace
}  // namespace lockstep::shm::test

#include "shm/placement.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace lockstep::shm {
namespace {

// Where all ranks run after those that should have moved.
std::vector<int> after_moves(std::vector<int> cores, const std::vector<int>& usable) {
  const std::vector<int> before = cores;
  for (size_t rank = 0; rank < cores.size(); ++rank) {
    cores[rank] = better_core(before, static_cast<int>(rank), usable).value_or(before[rank]);
  }
  return cores;
}

using Cores = std::vector<int>;

TEST(Placement, RanksThatAreEvenStay) {
  EXPECT_EQ(after_moves({0, 1, 1, 0}, {0, 1}), (Cores{0, 1, 1, 0}));
  EXPECT_EQ(after_moves({0, 1, 0}, {0, 1}), (Cores{0, 1, 0}));
  EXPECT_EQ(after_moves({}, {0, 1}), Cores{});
}

TEST(Placement, TheLastRanksOfAFullCoreMove) {
  EXPECT_EQ(after_moves({0, 0, 1, 0}, {0, 1}), (Cores{0, 0, 1, 1}));
  EXPECT_EQ(after_moves({1, 1, 1, 1, 1, 1, 1, 1}, {0, 1}), (Cores{1, 1, 1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(after_moves({5, 5, 5, 5, 9, 5}, {5, 7, 9}), (Cores{5, 5, 9, 7, 9, 7}));
}

TEST(Placement, RanksElsewhereAreNotOurs) {
  EXPECT_EQ(after_moves({0, 0, 0, 3}, {0, 1}), (Cores{0, 0, 0, 3}));
  EXPECT_EQ(after_moves({0, 0, 0, -1}, {0, 1}), (Cores{0, 0, 0, -1}));
}

// Every placement of up to 7 ranks on 3 cores ends with at most one rank of difference.
TEST(Placement, EveryBeginningEndsEven) {
  const Cores usable{0, 1, 2};
  for (size_t num_ranks = 1; num_ranks <= 7; ++num_ranks) {
    Cores cores(num_ranks, 0);
    while (true) {
      std::vector<int> count(usable.size(), 0);
      for (const int core : after_moves(cores, usable)) {
        ++count[static_cast<size_t>(core)];
      }
      const auto [least, most] = std::minmax_element(count.begin(), count.end());
      ASSERT_LE(*most - *least, 1) << testing::PrintToString(cores);
      size_t digit = 0;
      while (digit < num_ranks && ++cores[digit] == 3) {
        cores[digit++] = 0;
      }
      if (digit == num_ranks) {
        break;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::shm

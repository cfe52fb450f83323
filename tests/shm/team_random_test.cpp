// Random sequences of operations, each rank delayed at random places.

#include <iterator>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "shm/thread_team.h"

namespace lockstep::shm::test {
namespace {

constexpr size_t kKiB = 1 << 10;
constexpr CaseRunner::Limits kLimits{.input_bytes = 2200 * kKiB, .output_bytes = 4400 * kKiB};
constexpr CaseRunner::Limits kTsanLimits{.input_bytes = 1400 * kKiB, .output_bytes = 2800 * kKiB};
constexpr int kNumOperations = kIsTsan ? 120 : 300;

constexpr Kind kKinds[] = {Kind::AllReduce,     Kind::AllReduce, Kind::Broadcast, Kind::AllGather,
                           Kind::ReduceScatter, Kind::AllToAll,  Kind::Barrier};
constexpr Sum kSums[] = {{DataType::Float32, Reduction::Sum},
                         {DataType::Float32, Reduction::Average},
                         {DataType::BFloat16, Reduction::Sum},
                         {DataType::Int32, Reduction::Max},
                         {DataType::UInt8, Reduction::BitOr}};

std::atomic<uint64_t> delay_seed{0};

// At every step of every rank: mostly nothing, sometimes the core goes to others, sometimes a
// little work.
void delay_at_random(State /*state*/) {
  thread_local std::minstd_rand random(static_cast<uint32_t>(
      scramble(delay_seed.load() + std::hash<std::thread::id>()(std::this_thread::get_id()))));
  const auto dice = random() % 16;
  if (dice == 0) {
    for (auto i = random() % 20; i > 0; --i) {
      std::this_thread::yield();
    }
  } else if (dice < 4) {
    for (auto i = random() % 2000; i > 0; --i) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
  }
}

class RandomCases {
 public:
  RandomCases(const CaseRunner& runner, int size, uint64_t seed)
      : runner_(runner), size_(size), random_(seed) {}

  std::vector<Case> make(int count) {
    std::vector<Case> cases;
    while (static_cast<int>(cases.size()) < count) {
      Case item = next();
      if (runner_.fits(item)) {
        cases.push_back(std::move(item));
      }
    }
    return cases;
  }

 private:
  size_t pick(size_t below) { return random_() % below; }

  // Small ones often, to synchronise often; large ones for every algorithm.
  size_t random_bytes() {
    switch (pick(8)) {
      case 0:
        return 0;
      case 1:
      case 2:
        return pick(200);
      case 3:
      case 4:
        return pick(64 * kKiB);
      case 5:
        return 128 * kKiB - 8 + pick(16);
      case 6:
        return kSlotBytes - 8 + pick(300 * kKiB);
      default:
        return pick(2200 * kKiB);
    }
  }

  Case next() {
    const Sum& sum = kSums[pick(std::size(kSums))];
    Case item{.kind = kKinds[pick(std::size(kKinds))],
              .type = sum.type,
              .reduction = sum.reduction,
              .root = static_cast<int>(pick(static_cast<size_t>(size_))),
              .count = random_bytes() / element_bytes(sum.type)};
    if (item.kind == Kind::ReduceScatter) {
      item.count /= static_cast<size_t>(size_);
    }
    const size_t way = pick(3);
    item.bound_ranks = way == 0   ? kNoneBound
                       : way == 1 ? kAllBound
                                  : static_cast<unsigned>(random_());
    item.offset = pick(4) == 0 ? pick(17) : 0;
    if (item.kind == Kind::AllToAll) {
      item.splits = runner_.random_splits(item.count, random_());
    }
    return item;
  }

  const CaseRunner& runner_;
  const int size_;
  std::mt19937_64 random_;
};

TEST(RandomSchedules, GiveTheRightResults) {
  const uint64_t num_seeds = is_long() ? 100 : 2;
  const std::pair<int, Cores> worlds[] = {{2, Cores::TooFew}, {2, Cores::Enough},
                                          {3, Cores::TooFew}, {3, Cores::Enough},
                                          {4, Cores::TooFew}, {8, Cores::TooFew}};
  for (const auto& [size, cores] : worlds) {
    CaseRunner runner(size, kIsTsan ? kTsanLimits : kLimits, cores);
    for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
      SCOPED_TRACE(testing::Message()
                   << "size " << size << " cores " << num_cores(cores, size) << " seed " << seed);
      const auto cases =
          RandomCases(runner, size, seed * 100 + static_cast<uint64_t>(size)).make(kNumOperations);
      delay_seed.store(seed);
      set_state_hook(delay_at_random);
      runner.run(cases);
      set_state_hook(nullptr);
      if (HasFailure()) {
        return;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::shm::test

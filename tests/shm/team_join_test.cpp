// Siblings of the tree that come one behind the other: the second adds its data to the first's
// slot. Who did is seen in the announcements; that no bit of a result tells is what is tested.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "shm/thread_team.h"

namespace lockstep::shm::test {
namespace {

constexpr size_t kBytes = (200 << 10) + 8;  // whole in the slots, and not tiny, on any team

std::atomic<int> num_staged{0};
std::atomic<bool> holds_joiners{false};

void count_and_hold(State state) {
  if (state == State::Arrive) {
    num_staged.fetch_add(1);
    num_staged.notify_all();
  } else if (state == State::Join) {
    holds_joiners.wait(true);
  }
}

void let_joiners_go() {
  holds_joiners.store(false);
  holds_joiners.notify_all();
}

// Ranks that call an operation one behind the other: each when the one before it has staged.
class Queue {
 public:
  explicit Queue(int size) : threads_(size), bound_(threads_.bind(kBytes)) {
    set_state_hook(count_and_hold);
  }
  ~Queue() { set_state_hook(nullptr); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  int size() const { return threads_.size(); }
  std::byte* bound(int rank) const { return bound_[static_cast<size_t>(rank)]; }

  // In order of `places`, which has one for each rank.
  template <typename MakeTask>
  void run(const std::vector<int>& places, MakeTask make_task) {
    num_staged.store(0);
    ++num_operations_;
    threads_.run([&](int rank) {
      const int place = places[static_cast<size_t>(rank)];
      for (int now = num_staged.load(); now < place; now = num_staged.load()) {
        num_staged.wait(now);
      }
      try {
        threads_.team(rank).run(make_task(rank));
      } catch (...) {
        let_joiners_go();
        throw;
      }
    });
  }

  // In the last operation.
  bool has_joined(int rank) const {
    const ArenaLayout layout(size());
    const std::byte* const arena = threads_.arena(rank);
    return reinterpret_cast<const Announcement*>(arena + layout.announcements)[num_operations_ % 2]
        .joined;
  }

 private:
  ThreadTeam threads_;
  const std::vector<std::byte*> bound_;
  int num_operations_ = 0;
};

constexpr Sum kSums[] = {
    {DataType::Float32, Reduction::Sum},     {DataType::Float32, Reduction::Average},
    {DataType::Float32, Reduction::Min},     {DataType::Float64, Reduction::Sum},
    {DataType::Float64, Reduction::Product}, {DataType::Int32, Reduction::Sum},
    {DataType::Int64, Reduction::Max},       {DataType::Bool, Reduction::BitAnd},
    {DataType::BFloat16, Reduction::Sum},    {DataType::Float16, Reduction::Average},
    {DataType::Float16, Reduction::Max},
};

class JoiningTeam : public ::testing::TestWithParam<int> {
 protected:
  JoiningTeam() : queue_(GetParam()) {}

  // Bit r of `bound_ranks`: rank r's data is in its buffer.
  void expect_sums(const std::vector<int>& places, unsigned bound_ranks) {
    const int size = queue_.size();
    const auto is_bound = [bound_ranks](int rank) { return (bound_ranks >> rank & 1) != 0; };
    for (const auto& [type, reduction] : kSums) {
      Oracle oracle({.type = type, .num_ranks = size, .bytes = kBytes});
      oracle.prepare(reduction);
      std::vector<Bytes> ordinary(static_cast<size_t>(size), Bytes(kBytes));
      const auto data_of = [&](int rank) {
        return is_bound(rank) ? queue_.bound(rank) : ordinary[static_cast<size_t>(rank)].data();
      };
      for (int rank = 0; rank < size; ++rank) {
        std::memcpy(data_of(rank), oracle.input(rank), kBytes);
      }
      queue_.run(places, [&, type = type, reduction = reduction](int rank) {
        return Task{.kind = Kind::AllReduce,
                    .type = type,
                    .reduction = reduction,
                    .count = kBytes / element_bytes(type),
                    .input = data_of(rank),
                    .output = data_of(rank)};
      });
      for (int rank = 0; rank < size; ++rank) {
        SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type) << " reduction "
                                        << static_cast<int>(reduction) << " rank " << rank);
        const int sibling = rank ^ 1;
        const bool joins = !is_half(type) && sibling < size && !is_bound(rank) &&
                           !is_bound(sibling) &&
                           places[static_cast<size_t>(rank)] > places[static_cast<size_t>(sibling)];
        EXPECT_EQ(queue_.has_joined(rank), joins);
        EXPECT_EQ(std::memcmp(data_of(rank), oracle.reduced(reduction), kBytes), 0);
      }
    }
  }

  std::vector<int> in_order() const {
    std::vector<int> places(static_cast<size_t>(queue_.size()));
    std::iota(places.begin(), places.end(), 0);
    return places;
  }

  Queue queue_;
};

TEST_P(JoiningTeam, TheSecondOfTwoAddsToTheFirst) {
  expect_sums(in_order(), kNoneBound);
}

TEST_P(JoiningTeam, WhicheverOfThemIsSecond) {
  std::vector<int> places = in_order();
  std::reverse(places.begin(), places.end());
  expect_sums(places, kNoneBound);
}

TEST_P(JoiningTeam, OthersMayHaveABufferOrNoSibling) {
  expect_sums(in_order(), 0b1000);  // rank 3, which has a sibling that fills its slot
  expect_sums(in_order(), 0b0001);
}

INSTANTIATE_TEST_SUITE_P(Sizes, JoiningTeam, ::testing::Values(2, 3, 4, 7, 8));

// Of zeros that differ in their sign the least is that of the lower rank.
TEST(TeamJoin, KeepsTheOrderOfItsTwo) {
  Queue queue(2);
  for (const std::vector<int>& places : {std::vector{0, 1}, std::vector{1, 0}}) {
    for (const float zero : {0.0f, -0.0f}) {
      constexpr size_t kCount = kBytes / sizeof(float);
      std::vector<std::vector<float>> data{std::vector<float>(kCount, zero),
                                           std::vector<float>(kCount, -zero)};
      const std::vector<float> expected = data[0];
      queue.run(places, [&](int rank) {
        float* const mine = data[static_cast<size_t>(rank)].data();
        return Task{.kind = Kind::AllReduce,
                    .type = DataType::Float32,
                    .reduction = Reduction::Min,
                    .count = kCount,
                    .input = mine,
                    .output = mine};
      });
      EXPECT_TRUE(queue.has_joined(places[0] == 0 ? 1 : 0));
      EXPECT_EQ(std::memcmp(data[0].data(), expected.data(), kBytes), 0);
      EXPECT_EQ(std::memcmp(data[1].data(), expected.data(), kBytes), 0);
    }
  }
}

TEST(TeamJoin, ARankThatIsStuckInItEndsTheOthersAtTheirDeadline) {
  Queue queue(2);
  holds_joiners.store(true);
  std::vector<Bytes> data(2, Bytes(kBytes, std::byte{1}));
  const auto make_task = [&](int rank) {
    return Task{.kind = Kind::AllReduce,
                .count = kBytes,
                .input = data[static_cast<size_t>(rank)].data(),
                .output = data[static_cast<size_t>(rank)].data(),
                .deadline = rank == 0 ? base::Deadline::after(std::chrono::milliseconds(50))
                                      : base::Deadline::never()};
  };
  EXPECT_THROW(queue.run({0, 1}, make_task), Stopped);
  EXPECT_FALSE(holds_joiners.load());
  EXPECT_EQ(data[0], Bytes(kBytes, std::byte{1}));
}

TEST(TeamJoin, DoesNotMixDifferentCalls) {
  Queue queue(2);
  std::vector<Bytes> data(2, Bytes(kBytes, std::byte{1}));
  const auto make_task = [&](int rank) {
    return Task{.kind = Kind::AllReduce,
                .type = rank == 0 ? DataType::Float32 : DataType::Float64,
                .count = kBytes / 8,
                .input = data[static_cast<size_t>(rank)].data(),
                .output = data[static_cast<size_t>(rank)].data()};
  };
  EXPECT_THROW(queue.run({0, 1}, make_task), Disagreement);
  EXPECT_FALSE(queue.has_joined(0));
  EXPECT_FALSE(queue.has_joined(1));
  EXPECT_EQ(data[0], Bytes(kBytes, std::byte{1}));
  EXPECT_EQ(data[1], Bytes(kBytes, std::byte{1}));
}

}  // namespace
}  // namespace lockstep::shm::test

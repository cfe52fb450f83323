// What ends an operation without a result, what waiting costs, and the operation in two halves.

#include <cstring>
#include <ctime>
#include <optional>

#include <gtest/gtest.h>

#include "shm/thread_team.h"

namespace lockstep::shm::test {
namespace {

using namespace std::chrono_literals;

// What ends the body, if that is an `Ending`.
template <typename Ending, typename Body>
std::optional<Ending> ending_of(Body body) {
  try {
    body();
  } catch (const Ending& ending) {
    return ending;
  }
  return std::nullopt;
}

std::chrono::nanoseconds cpu_time() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

class TeamStops : public ::testing::TestWithParam<Cores> {
 protected:
  ThreadTeam team_of(int size) const { return ThreadTeam(size, GetParam()); }
};

std::string name_of(const ::testing::TestParamInfo<Cores>& cores) {
  return cores.param == Cores::Enough ? "OfTheirOwn" : "TooFew";
}

INSTANTIATE_TEST_SUITE_P(OnCores, TeamStops, ::testing::Values(Cores::TooFew, Cores::Enough),
                         name_of);

TEST_P(TeamStops, AtTheDeadline) {
  ThreadTeam threads = team_of(2);
  const auto stopped =
      ending_of<Stopped>([&] { threads.team(0).run({.deadline = base::Deadline::after(20ms)}); });
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->why, Stopped::Why::Deadline);
}

TEST_P(TeamStops, WithoutUsingACoreUntilThen) {
  ThreadTeam threads = team_of(2);
  const auto before = cpu_time();
  const auto started = base::Clock::now();
  EXPECT_TRUE(
      ending_of<Stopped>([&] { threads.team(0).run({.deadline = base::Deadline::after(300ms)}); }));
  EXPECT_GE(base::Clock::now() - started, 300ms);
  EXPECT_LT(cpu_time() - before, 5ms);
}

TEST_P(TeamStops, WhenInterruptedAndForGood) {
  for (int round = 0; round < 50; ++round) {
    ThreadTeam threads = team_of(3);
    threads.run([&](int rank) {
      if (rank == 2) {
        threads.team(0).interrupt();
        threads.team(1).interrupt();
        return;
      }
      for (int i = 0; i < 2; ++i) {
        const auto stopped = ending_of<Stopped>([&] { threads.team(rank).run({}); });
        ASSERT_TRUE(stopped);
        EXPECT_EQ(stopped->why, Stopped::Why::Interrupted);
      }
    });
  }
}

TEST_P(TeamStops, WhenARankHasLeft) {
  for (int round = 0; round < 50; ++round) {
    ThreadTeam threads = team_of(3);
    threads.run([&](int rank) {
      Team& team = threads.team(rank);
      std::vector<float> data(100000, 1);  // the others may still be in it when rank 1 leaves
      team.run({.kind = Kind::AllReduce,
                .type = DataType::Float32,
                .count = data.size(),
                .input = data.data(),
                .output = data.data()});
      EXPECT_EQ(data, std::vector<float>(100000, 3));
      if (rank == 1) {
        team.depart();
        return;
      }
      const auto departed = ending_of<Departed>([&] { team.run({}); });
      ASSERT_TRUE(departed);
      EXPECT_EQ(departed->rank, 1);
    });
  }
}

// One rank finds out; the others are told by whoever it tells.
template <typename Ending, typename MakeTask>
std::vector<std::optional<Ending>> endings(ThreadTeam& threads, MakeTask make_task) {
  std::vector<std::optional<Ending>> found(static_cast<size_t>(threads.size()));
  threads.run([&](int rank) {
    const auto stopped = ending_of<Stopped>([&] {
      found[static_cast<size_t>(rank)] =
          ending_of<Ending>([&] { threads.team(rank).run(make_task(rank)); });
    });
    if (!stopped) {
      for (int other = 0; other < threads.size(); ++other) {
        threads.team(other).interrupt();
      }
    }
  });
  return found;
}

TEST_P(TeamStops, WhenRanksCallDifferentOperations) {
  std::vector<std::byte> data(1 << 10);
  const Task usual{.kind = Kind::AllReduce,
                   .type = DataType::Int32,
                   .count = 10,
                   .input = data.data(),
                   .output = data.data(),
                   .sequence = 100};
  std::vector<Task> others(5, usual);
  others[0].kind = Kind::Barrier;
  others[1].count = 11;
  others[2].type = DataType::Float32;
  others[3].reduction = Reduction::Max;
  others[4].sequence = 101;  // equal to a call that comes later, or came before
  for (const Task& other : others) {
    ThreadTeam threads = team_of(3);
    const auto found =
        endings<Disagreement>(threads, [&](int rank) { return rank == 2 ? other : usual; });
    int num_found = 0;
    for (const auto& disagreement : found) {
      if (disagreement) {
        ++num_found;
        EXPECT_EQ(disagreement->rank, 2);
        EXPECT_EQ(disagreement->theirs.kind, other.kind);
        EXPECT_EQ(disagreement->theirs.count, other.count);
        EXPECT_EQ(disagreement->theirs.sequence, other.sequence);
        EXPECT_EQ(disagreement->of_rank_0.sequence, 100);
      }
    }
    // At the gate the last to come is the judge; by marks everyone is.
    EXPECT_GE(num_found, 1);
    EXPECT_TRUE(GetParam() == Cores::Enough || num_found == 1);
    EXPECT_EQ(data, std::vector<std::byte>(1 << 10)) << "data was moved";
  }
}

TEST_P(TeamStops, WhenSplitsDoNotMatch) {
  ThreadTeam threads = team_of(2);
  std::vector<std::byte> data(100);
  const std::vector<int64_t> three{3, 3};
  const std::vector<int64_t> wrong{3, 4};
  std::vector<std::byte> outputs(200);
  const auto found = endings<SplitMismatch>(threads, [&](int rank) {
    return Task{.kind = Kind::AllToAll,
                .input = data.data(),
                .output = outputs.data() + 100 * rank,
                .input_splits = three,
                .output_splits = rank == 0 ? wrong : three};
  });
  ASSERT_TRUE(found[0]);
  EXPECT_EQ(found[0]->rank, 1);
  EXPECT_EQ(found[0]->sent, 3U);
  EXPECT_EQ(found[0]->expected, 4U);
}

TEST(TeamBindings, EndWithTheirOwner) {
  Arenas arenas(1);
  Team team(0, arenas.addresses());
  std::vector<std::byte> buffer(1000);
  auto owner = std::make_shared<int>();
  team.bind({.own = buffer.data(), .bytes = 1000, .addresses = {buffer.data()}, .owner = owner});
  EXPECT_TRUE(team.is_bound(buffer.data(), 1000));
  EXPECT_TRUE(team.is_bound(buffer.data() + 999, 1));
  EXPECT_FALSE(team.is_bound(buffer.data() + 999, 2));
  EXPECT_FALSE(team.is_bound(buffer.data() - 1, 1));
  owner.reset();
  EXPECT_FALSE(team.is_bound(buffer.data(), 1));
  team.sweep();
  EXPECT_FALSE(team.is_bound(buffer.data(), 1));
}

TEST(TeamBindings, OfTheSameAddressCountAnew) {
  Arenas arenas(1);
  Team team(0, arenas.addresses());
  std::vector<std::byte> buffer(1000);
  auto old_owner = std::make_shared<int>();
  auto owner = std::make_shared<int>();
  team.bind({.own = buffer.data(), .bytes = 10, .addresses = {buffer.data()}, .owner = old_owner});
  team.bind({.own = buffer.data(), .bytes = 1000, .addresses = {buffer.data()}, .owner = owner});
  old_owner.reset();
  team.sweep();
  EXPECT_TRUE(team.is_bound(buffer.data(), 1000));
}

// ---- reduce_exchange ----

// As if the other nodes gave nothing. In two parts, the second one first.
class Nothing : public Exchange {
 public:
  void exchange(const ExchangeSlice& slice) override {
    const size_t half = slice.count / 2;
    slice.reduce(half, slice.count - half);
    slice.reduce(0, half);
    slice.write(half, slice.count - half);
    slice.write(0, half);
    num_elements += slice.count;
  }
  size_t num_elements = 0;
};

constexpr Sum kSums[] = {
    {DataType::Float32, Reduction::Sum},  {DataType::Float32, Reduction::Average},
    {DataType::Float32, Reduction::Min},  {DataType::BFloat16, Reduction::Sum},
    {DataType::BFloat16, Reduction::Max}, {DataType::Float16, Reduction::Average},
    {DataType::Int32, Reduction::BitAnd}, {DataType::Int64, Reduction::Product},
    {DataType::Bool, Reduction::BitOr},
};

class TeamExchange : public TeamStops {};

INSTANTIATE_TEST_SUITE_P(OnCores, TeamExchange, ::testing::Values(Cores::TooFew, Cores::Enough),
                         name_of);

TEST_P(TeamExchange, WithoutOtherNodesIsAnAllReduce) {
  constexpr int kSize = 4;
  constexpr size_t kBytes = 100 << 10;
  ThreadTeam threads = team_of(kSize);
  const std::vector<std::byte*> buffers = threads.bind(kBytes);
  for (const auto& [type, reduction] : kSums) {
    Oracle oracle({.type = type, .num_ranks = kSize, .bytes = kBytes});
    oracle.prepare(reduction);
    for (const size_t bytes : {size_t{0}, size_t{8}, size_t{8 * 1001}, kBytes}) {
      for (const int num_slices : {1, 3, kSize}) {
        const size_t count = bytes / element_bytes(type);
        std::vector<Nothing> exchanges(kSize);
        threads.run([&, type = type, reduction = reduction](int rank) {
          std::byte* const mine = buffers[static_cast<size_t>(rank)];
          std::memcpy(mine, oracle.input(rank), bytes);
          threads.team(rank).reduce_exchange({.kind = Kind::AllReduce,
                                              .type = type,
                                              .reduction = reduction,
                                              .count = count,
                                              .input = mine,
                                              .output = mine},
                                             num_slices, exchanges[static_cast<size_t>(rank)]);
          EXPECT_EQ(std::memcmp(mine, oracle.reduced(reduction), bytes), 0)
              << "type " << static_cast<int>(type) << " reduction " << static_cast<int>(reduction)
              << " bytes " << bytes << " slices " << num_slices << " rank " << rank;
        });
        size_t total = 0;
        for (const Nothing& exchange : exchanges) {
          total += exchange.num_elements;
        }
        EXPECT_EQ(total, count);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::shm::test

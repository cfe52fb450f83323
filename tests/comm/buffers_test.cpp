// Memory that groups reduce where it lies, and groups made of groups.

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "comm/every_backend.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing_support::choice_of;
using testing_support::rank_argument;
using testing_support::run_ranks;

class Buffers : public testing_support::EveryBackend {};
class Split : public testing_support::EveryBackend {};

at::Tensor filled(int rank, int64_t numel, uint64_t seed) {
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(seed * 1000 + static_cast<uint64_t>(rank));
  return at::randn({numel}, generator);
}

// The documented order: a binary tree over ranks.
at::Tensor tree_sum(int first, int last, int64_t numel, uint64_t seed) {
  const int count = last - first;
  if (count == 1) {
    return filled(first, numel, seed);
  }
  int half = 1;
  while (half * 2 < count) {
    half *= 2;
  }
  return tree_sum(first, first + half, numel, seed) + tree_sum(first + half, last, numel, seed);
}

TEST_P(Buffers, LocalRanksReadOneAnothersMemory) {
  for (const int world : {1, 2, 3, 4}) {
    run(world, [](Group& group) {
      const std::vector<int> ranks = group.local_ranks();
      EXPECT_EQ(ranks.size() == 1,
                group.size() == 1 || group.backend_name() == "gloo" ||
                    (group.backend_name() == "hierarchical" &&
                     (group.size() == 2 || group.rank() == 2) && group.size() < 4));
      const at::Tensor memory = group.allocate(10'000);
      memory.fill_(group.rank());
      group.barrier();
      const std::vector<at::Tensor> views = group.local_views(memory.narrow(0, 9'000, 1'000));
      ASSERT_EQ(views.size(), ranks.size());
      for (size_t i = 0; i < ranks.size(); ++i) {
        EXPECT_TRUE(views[i].equal(at::full({1'000}, ranks[i], at::kByte)));
      }
      group.barrier();
      if (ranks.size() > 1) {
        EXPECT_THROW(group.local_views(at::zeros({8})), UsageError);
      }
    });
  }
}

TEST_P(Buffers, EveryOperationWorksOnThemAndOnPartsOfThem) {
  for (const int world : {1, 2, 3, 4, 8}) {
    run(world, [](Group& group) {
      const int size = group.size();
      const int rank = group.rank();
      for (const int64_t numel : {1, 1001, 50'000, 600'000}) {
        const at::Tensor memory = group.allocate((size + 2) * numel * 4).view(at::kFloat);
        EXPECT_EQ(memory.abs().sum().item<float>(), 0.0f) << "zero at first";
        const at::Tensor x = memory.narrow(0, 0, numel);
        x.fill_(static_cast<float>(rank + 1));
        group.all_reduce(x);
        EXPECT_TRUE(x.equal(at::full({numel}, static_cast<float>(size * (size + 1) / 2))));
        EXPECT_EQ(memory.narrow(0, numel, numel).abs().sum().item<float>(), 0.0f) << "spilled";

        const at::Tensor odd = memory.narrow(0, numel / 3, numel / 2 + 1);  // not aligned
        odd.fill_(static_cast<float>(rank));
        group.all_reduce(odd, {.op = ReduceOp::Max});
        EXPECT_TRUE(odd.equal(at::full_like(odd, static_cast<float>(size - 1))));

        x.fill_(static_cast<float>(rank));
        group.broadcast(x, {.root = size - 1});
        EXPECT_TRUE(x.equal(at::full({numel}, static_cast<float>(size - 1))));

        const at::Tensor all = memory.narrow(0, 0, size * numel);
        const at::Tensor part = all.narrow(0, rank * numel, numel);  // in place
        part.fill_(static_cast<float>(rank));
        group.all_gather(all, part);
        for (int other = 0; other < size; ++other) {
          EXPECT_TRUE(all.narrow(0, other * numel, numel)
                          .equal(at::full({numel}, static_cast<float>(other))));
        }
        const at::Tensor result = memory.narrow(0, size * numel, numel);
        group.reduce_scatter(result, all);
        EXPECT_TRUE(result.equal(at::full({numel}, static_cast<float>(size * rank))));
        const at::Tensor transposed = at::empty({size, numel});
        group.all_to_all(transposed, all.view({size, numel}));
        EXPECT_TRUE(transposed.equal(at::full({size, numel}, static_cast<float>(rank))));
      }
    });
  }
}

TEST_P(Buffers, SumsHaveOneOrderAtEverySizeBoundOrNot) {
  if (is_gloo()) {
    GTEST_SKIP() << "Gloo promises no order";
  }
  // On two nodes only equal powers of two per node give the tree over all ranks.
  for (const int world :
       GetParam().nodes == 1 ? std::vector{2, 3, 4, 7, 8} : std::vector{2, 4, 8}) {
    run(world, [](Group& group) {
      uint64_t seed = 1;
      for (const int64_t numel : {1, 17, 1001, 8193, 40'000, 262'145, 700'001}) {
        const at::Tensor expected = tree_sum(0, group.size(), numel, seed);
        const at::Tensor ordinary = filled(group.rank(), numel, seed);
        const at::Tensor bound = group.allocate(numel * 4).view(at::kFloat);
        bound.copy_(ordinary);
        const at::Tensor mixed = group.rank() % 2 == 0 ? bound.clone() : bound;
        const at::Tensor averaged = ordinary.clone();
        group.all_reduce(ordinary);
        EXPECT_TRUE(ordinary.equal(expected)) << "ordinary, " << numel;
        group.all_reduce(mixed);
        EXPECT_TRUE(mixed.equal(expected)) << "mixed, " << numel;
        bound.copy_(filled(group.rank(), numel, seed));
        group.all_reduce(bound);
        EXPECT_TRUE(bound.equal(expected)) << "bound, " << numel;
        group.all_reduce(averaged, {.op = ReduceOp::Average});
        EXPECT_TRUE(averaged.equal(expected / group.size())) << "average, " << numel;
        ++seed;
      }
    });
  }
}

TEST_P(Buffers, HalfPrecisionIsRoundedOnceAtTheEnd) {
  if (is_gloo()) {
    GTEST_SKIP() << "Gloo rounds every partial sum";
  }
  run(4, [](Group& group) {
    for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
      for (const int64_t numel : {1001, 300'001}) {
        const auto input = [&](int rank) { return filled(rank, numel, 5).to(type).to(at::kFloat); };
        const at::Tensor expected = ((input(0) + input(1)) + (input(2) + input(3))).to(type);
        const at::Tensor x = input(group.rank()).to(type);
        group.all_reduce(x);
        EXPECT_TRUE(x.equal(expected)) << c10::toString(type) << ", " << numel;
      }
    }
  });
}

TEST_P(Buffers, OutliveTheirGroupAndMoveToAnother) {
  run(3, [](Group& group) {
    const auto make = [&](const std::string& name) {
      return make_group(group.store(), {.name = testing_support::case_name() + "/move/" + name,
                                        .rank = group.rank(),
                                        .size = group.size(),
                                        .timeout = 20s,
                                        .backend = choice_of(group)});
    };
    at::Tensor memory;
    {
      Group first = make("first");
      memory = first.allocate(4 * 300'000);
      memory.view(at::kFloat).fill_(2.0f);
    }
    EXPECT_EQ(memory.view(at::kFloat).sum().item<float>(), 600'000.0f);
    Group second = make("second");
    const void* address = memory.const_data_ptr();
    second.rebind(memory);
    EXPECT_EQ(memory.const_data_ptr(), address);
    const at::Tensor x = memory.view(at::kFloat);
    second.all_reduce(x);
    EXPECT_TRUE(x.equal(at::full({300'000}, 6.0f)));
    second.barrier();
    memory.reset();  // x still holds it
    second.all_reduce(x);
    EXPECT_TRUE(x.equal(at::full({300'000}, 18.0f)));
    if (group.backend_name() != "gloo") {
      EXPECT_THROW(second.rebind(at::ones({8})), UsageError);
    }
  });
}

// VmRSS and the like of /proc/self/status, in its unit.
int64_t status_value(const std::string& name) {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word) {
    if (word == name + ":") {
      int64_t value = 0;
      file >> value;
      return value;
    }
  }
  return -1;
}

int64_t num_fds() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

int64_t num_mappings() {
  std::ifstream maps("/proc/self/maps");
  return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
}

// What failed groups have in flight takes moments to end: `number` is read until it is at most
// `limit`, and at last.
int64_t settled(int64_t (*number)(), int64_t limit) {
  const auto give_up = std::chrono::steady_clock::now() + 20s;
  while (number() > limit && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(10ms);
  }
  return number();
}

int64_t num_threads() {
  return status_value("Threads");
}

// Of so many groups that lose a rank, those after the first few must add nothing.
constexpr int kFirstLost = 5;
constexpr int kNumLost = 25;

void lose_a_rank(Group& group) {
  static int64_t fds = 0;  // of the survivors, which stay from one to the next
  static int64_t threads = 0;
  const int round = std::stoi(rank_argument());
  if (round == kFirstLost) {
    fds = num_fds();
    threads = num_threads();
  } else if (round == kNumLost && group.rank() != 1) {
    EXPECT_LE(settled(num_fds, fds), fds);
    EXPECT_LE(settled(num_threads, threads), threads);
  }
  at::Tensor x = at::ones({100'000});
  if (group.rank() == 1) {
    group.all_reduce(x);
    testing_support::die_now();  // the others may still be in it
  }
  const auto call_until_lost = [&] {
    for (;;) {
      group.all_reduce(x, {.timeout = 20s});
    }
  };
  EXPECT_THROW(call_until_lost(), PeerLostError);
}

TEST_P(Buffers, GroupsThatLoseARankLeaveNothingBehind) {
  for (int round = 0; round <= kNumLost; ++round) {
    run(4, lose_a_rank, {.argument = std::to_string(round), .dies = {1}});
  }
}

TEST_P(Buffers, AThousandGroupsLeaveNothingBehind) {
  const int count = GetParam().backend == BackendChoice::Shm ? 1000 : 100;
  run(2,
      [](Group& group) {
        const int rounds = std::stoi(rank_argument());
        int64_t fds = 0;
        int64_t threads = 0;
        int64_t mappings = 0;
        int64_t kilobytes = 0;
        for (int i = 0; i < rounds; ++i) {
          {
            Group next = make_group(
                group.store(), {.name = testing_support::case_name() + "/many/" + std::to_string(i),
                                .rank = group.rank(),
                                .size = group.size(),
                                .timeout = 20s,
                                .backend = choice_of(group)});
            const at::Tensor x = next.allocate(1 << 16).view(at::kFloat);
            x.fill_(1.0f);
            next.all_reduce_async(x).wait();
            EXPECT_EQ(x[0].item<float>(), 2.0f);
          }
          group.barrier();
          if (i == rounds / 10) {
            fds = num_fds();
            threads = num_threads();
            mappings = num_mappings();
            kilobytes = status_value("VmRSS");
          }
        }
        EXPECT_LE(settled(num_fds, fds), fds);
        EXPECT_LE(settled(num_threads, threads), threads);
        EXPECT_LE(num_mappings(), mappings + 20);
        EXPECT_LE(status_value("VmRSS"), kilobytes + 20'000);
      },
      {.argument = std::to_string(count), .limit = 120s});
}

TEST_P(Split, ByColorInTheOrderOfKeys) {
  run(7, [](Group& group) {
    const int rank = group.rank();
    // Ranks 0, 3, 6 | 1, 4 | 2, 5, each in reverse.
    Group part = group.split(rank % 3, -rank);
    const int size = rank % 3 == 0 ? 3 : 2;
    ASSERT_EQ(part.size(), size);
    EXPECT_EQ(part.rank(), size - 1 - rank / 3);
    at::Tensor ranks = at::empty({size}, at::kLong);
    part.all_gather(ranks, at::full({1}, rank, at::kLong));
    for (int i = 0; i < size; ++i) {
      EXPECT_EQ(ranks[i].item<int64_t>(), rank % 3 + 3 * (size - 1 - i));
    }
    // The whole group works beside its parts, and parts of parts do.
    at::Tensor x = at::ones({5});
    group.all_reduce(x);
    EXPECT_TRUE(x.equal(at::full({5}, 7.0f)));
    Group alone = part.split(part.rank(), 0);
    EXPECT_EQ(alone.size(), 1);
    Group none = group.split(rank == 4 ? -1 : 0);
    EXPECT_EQ(none.size(), rank == 4 ? 1 : 6);
  });
}

// Some ranks have dropped theirs while others still make it.
TEST_P(Split, AGroupMayBeDroppedAtOnce) {
  run(5, [](Group& group) {
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(group.split(0, group.rank()).size(), 5);
    }
  });
}

TEST(SplitOfOne, IsOne) {
  Group one = make_single_group();
  EXPECT_EQ(one.split(3).size(), 1);
}

TEST(Hierarchical, SendsTheLeastBytesAndCountsThem) {
  run_ranks(8,
            [](Group& group) {
              ASSERT_EQ(group.backend_name(), "hierarchical");
              const int64_t numel = 1 << 20;
              const uint64_t before = group.traffic().network_bytes_sent;
              at::Tensor x = at::ones({numel});
              group.all_reduce(x);
              EXPECT_TRUE(x.equal(at::full({numel}, 8.0f)));
              at::Tensor sent =
                  at::full({1}, static_cast<int64_t>(group.traffic().network_bytes_sent - before),
                           at::kLong);
              group.all_reduce(sent);
              // Two nodes: each sends 2 (H - 1) / H = 1 times the bytes.
              const double per_node = sent.item<double>() / 2;
              EXPECT_NEAR(per_node, 4.0 * numel, 0.02 * 4.0 * numel);
            },
            {.nodes = 2});
}

TEST(Hierarchical, BfloatOnTheWireHalvesThemAndRanksAgree) {
  run_ranks(4,
            [](Group& group) {
              const int64_t numel = 100'003;
              at::Tensor x = filled(group.rank(), numel, 9);
              const at::Tensor exact = tree_sum(0, 4, numel, 9);
              group.all_reduce(x);
              EXPECT_TRUE(x.allclose(exact, 0.02, 0.05));
              EXPECT_FALSE(x.equal(exact));
              at::Tensor all = at::empty({4, numel});
              group.all_gather(all, x);
              for (int rank = 1; rank < 4; ++rank) {
                EXPECT_TRUE(all[rank].equal(all[0])) << "rank " << rank;
              }
            },
            {.nodes = 2, .env = {"LOCKSTEP_WIRE=bfloat16"}});
}

// float16 ends at 65504 and below 6e-8: sums, averages and small numbers beyond that get through.
TEST(Hierarchical, HalfOnTheWireHasTheRangeOfFloats) {
  run_ranks(4,
            [](Group& group) {
              const int64_t numel = 100'003;
              for (const float value : {40000.0f, 0x1.8p+100f, 0x1.8p-60f, -7.25f, 0.0f}) {
                at::Tensor sum = at::full({numel}, value);
                group.all_reduce(sum);
                EXPECT_TRUE(sum.equal(at::full({numel}, 4 * value)))
                    << value << ": " << sum[0].item<float>();
                at::Tensor average = at::full({numel}, value);
                group.all_reduce(average, {.op = ReduceOp::Average});
                EXPECT_TRUE(average.equal(at::full({numel}, value)))
                    << value << ": " << average[0].item<float>();
              }
              at::Tensor x = filled(group.rank(), numel, 9) * 1e5f;
              const at::Tensor exact = tree_sum(0, 4, numel, 9) * 1e5f;
              group.all_reduce(x);
              // Two roundings to 11 bits, the first of numbers that may cancel out.
              EXPECT_LT((x - exact).abs().max().item<float>(),
                        2e-3f * exact.abs().max().item<float>());
              at::Tensor all = at::empty({4, numel});
              group.all_gather(all, x);
              for (int rank = 1; rank < 4; ++rank) {
                EXPECT_TRUE(all[rank].equal(all[0])) << "rank " << rank;
              }
              at::Tensor odd = at::ones({numel});  // what is no number stays none, and alone
              odd[5] = std::numeric_limits<float>::infinity();
              odd[7] = std::numeric_limits<float>::quiet_NaN();
              group.all_reduce(odd);
              EXPECT_EQ(odd[5].item<float>(), std::numeric_limits<float>::infinity());
              EXPECT_TRUE(std::isnan(odd[7].item<float>()));
              EXPECT_EQ(odd[6].item<float>(), 4.0f);
            },
            {.nodes = 2, .env = {"LOCKSTEP_WIRE=float16"}});
}

TEST(Choice, FollowsWhereTheRanksAre) {
  run_ranks(3, [](Group& group) { EXPECT_EQ(group.backend_name(), "shm"); });
  run_ranks(3, [](Group& group) { EXPECT_EQ(group.backend_name(), "hierarchical"); }, {.nodes = 2});
  run_ranks(3, [](Group& group) { EXPECT_EQ(group.backend_name(), "gloo"); }, {.nodes = 3});
  run_ranks(2,
            [](Group& group) {
              EXPECT_EQ(group.backend_name(), "gloo");
              try {
                make_group(group.store(), {.name = "impossible",
                                           .rank = group.rank(),
                                           .size = 2,
                                           .timeout = 20s,
                                           .backend = BackendChoice::Shm});
                ADD_FAILURE() << "shared memory between nodes";
              } catch (const UsageError& error) {
                EXPECT_THAT(error.what(), HasSubstr("ranks 0 and 1 do not share a host or node"));
              } catch (const PeerLostError& error) {  // the other one was quicker to give up
                EXPECT_THAT(error.what(), HasSubstr("an exception ended its work"));
              }
            },
            {.nodes = 2});
}

INSTANTIATE_TEST_SUITE_P(On, Buffers, ::testing::ValuesIn(testing_support::kEveryBackend),
                         testing_support::name_of);
INSTANTIATE_TEST_SUITE_P(On, Split, ::testing::ValuesIn(testing_support::kEveryBackend),
                         testing_support::name_of);

}  // namespace
}  // namespace lockstep

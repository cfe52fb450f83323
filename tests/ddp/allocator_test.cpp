// What the wrapper does to libtorch's CPU allocator, and that it can be told not to. The ranks are
// processes of their own, since a replaced allocator stays.

#include <cstdlib>

#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>

#include <lockstep/base/error.h>

#include "ddp/gradient_arena.h"
#include "ddp/nets.h"
#include "support/refusal.h"

namespace lockstep {
namespace {

using test::refusal;
using ::testing::HasSubstr;
using testing_support::rank_argument;
using testing_support::run_ranks;

constexpr const char* kVariable = "LOCKSTEP_CPU_ALLOCATOR";

struct Trained {
  Net net;
  bool are_gradients_shared = false;
};

Trained train(Group& group, DdpOptions options) {
  Trained trained{.net = make_net(1, kLargeWidth)};
  DistributedDataParallel ddp(trained.net, group, std::move(options));
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad(step % 2 == 0);
    loss_of(ddp(rows_of(whole_batch(group.size(), step), group.rank()))).backward();
    optimizer.step();
  }
  const torch::Tensor gradient = trained.net->first->weight.grad();
  trained.are_gradients_shared = refusal([&] { group.local_views(gradient); }) == "none";
  return trained;
}

// With the switch off, and then with it on: the allocator tells them apart, the bits do not.
void train_with_and_without(Group& group) {
  const bool is_by_option = rank_argument() == "option";
  const c10::Allocator* const before = c10::GetCPUAllocator();
  Trained without = train(group, {.replace_cpu_allocator = !is_by_option});
  EXPECT_EQ(c10::GetCPUAllocator(), before);
  EXPECT_TRUE(without.are_gradients_shared);
  ::unsetenv(kVariable);
  Trained with = train(group, {});
  EXPECT_NE(c10::GetCPUAllocator(), before) << "or the above proves nothing";
  EXPECT_TRUE(with.are_gradients_shared);
  expect_same_bits(without.net, with.net);
  expect_equal_on_all_ranks(group, without.net);
}

TEST(CpuAllocator, IsLeftAloneWhereTheOptionSaysSo) {
  for (const int nodes : {1, 2}) {
    run_ranks(3, train_with_and_without,
              {.nodes = nodes, .argument = "option", .env = {"LOCKSTEP_CPU_ALLOCATOR=lockstep"}});
  }
}

TEST(CpuAllocator, IsLeftAloneWhereTheEnvironmentSaysSo) {
  run_ranks(2, train_with_and_without,
            {.argument = "environment", .env = {"LOCKSTEP_CPU_ALLOCATOR=torch"}});
}

TEST(CpuAllocator, ASwitchThatDiffersBetweenRanksOrIsUnknownIsRefused) {
  run_ranks(2,
            [](Group& group) {
              const auto wrap = [&] { DistributedDataParallel(make_net(), group); };
              EXPECT_THAT(refusal(wrap), HasSubstr("LOCKSTEP_CPU_ALLOCATOR=never is not known"));
              ::setenv(kVariable, group.rank() == 0 ? "torch" : "lockstep", 1);
              EXPECT_THAT(refusal(wrap), HasSubstr("replace_cpu_allocator = "));
            },
            {.env = {"LOCKSTEP_CPU_ALLOCATOR=never"}});
}

// What begins where the cells end is another's.
TEST(GradientArena, HoldsItsCellsAndNothingBehindThem) {
  run_ranks(1, [](Group&) {
    const std::vector<int64_t> cells{5000, 4096};
    const int64_t room = ddp::GradientArena::room_for(cells);
    EXPECT_EQ(room, 3 * 4096);
    const auto arena = ddp::GradientArena::make(at::empty({room}, at::kByte), cells);
    EXPECT_FALSE(arena->contains(arena->begin() - 1));
    EXPECT_TRUE(arena->contains(arena->begin()));
    EXPECT_TRUE(arena->contains(arena->begin() + room - 1));
    EXPECT_FALSE(arena->contains(arena->begin() + room));
    arena->retire();
  });
}

}  // namespace
}  // namespace lockstep

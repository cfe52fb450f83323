// fp16_compress and bf16_compress: the values, and that it is the small type that travels.

#include <gtest/gtest.h>

#include <lockstep/ddp/compress_hooks.h>

#include "ddp/hook_support.h"
#include "support/fleet.h"

namespace lockstep {
namespace {

using testing_support::run_ranks;

struct Small {
  std::shared_ptr<CommHook> (*make)();
  at::ScalarType type;
  double epsilon;
};
const Small kSmall[] = {{fp16_compress, at::kHalf, 0x1p-11},
                        {bf16_compress, at::kBFloat16, 0x1p-8}};

TEST(CompressHooks, TheAverageRoundedToTheSmallType) {
  for (const int world : {1, 2, 3, 4}) {
    run_ranks(world, [](Group& group) {
      for (const Small& small : kSmall) {
        for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
          // The second bucket is several blocks of the conversion and a rest.
          const Parameters parameters = make_parameters({{5, 7}, {3}, {1}, {32'771}}, type);
          const auto buckets = make_buckets(parameters, {{1, 0}, {3}, {2}}, group);
          const auto hook = small.make();
          for (int step = 0; step < 3; ++step) {
            fill(buckets, parameters, step, group.rank());
            run_hook(*hook, buckets, group);
            EXPECT_TRUE(same_on_all_ranks(group, buckets));
            EXPECT_TRUE(gaps_are_zero(buckets));
            const auto found = results(buckets, parameters);
            for (size_t i = 0; i < found.size(); ++i) {
              const at::Tensor average = average_at(found[i].sizes(), group.size(), {0, step, i});
              if (group.size() == 1) {
                EXPECT_TRUE(found[i].equal(average.to(type)));
                continue;
              }
              EXPECT_TRUE(found[i].equal(found[i].to(small.type).to(type))) << "not rounded";
              EXPECT_TRUE(found[i].to(at::kDouble).allclose(average, 0, 4 * small.epsilon));
            }
          }
        }
      }
    });
  }
}

TEST(CompressHooks, TwoRanksDivideThenRoundThenAdd) {
  run_ranks(2, [](Group& group) {
    for (const Small& small : kSmall) {
      const Parameters parameters = make_parameters({{1001}}, at::kFloat);
      const auto buckets = make_buckets(parameters, {{0}}, group);
      fill(buckets, parameters, 5, group.rank());
      run_hook(*small.make(), buckets, group);
      at::Tensor expected[2];
      for (int rank : {0, 1}) {
        expected[rank] = (gradient_at({1001}, {rank, 5, 0}).to(at::kFloat) / 2).to(small.type);
      }
      EXPECT_TRUE(
          results(buckets, parameters)[0].equal((expected[0] + expected[1]).to(at::kFloat)));
    }
  });
}

TEST(CompressHooks, GiveEqualBitsOverEveryBackend) {
  for (const testing_support::Setting& setting : testing_support::kEveryBackend) {
    run_ranks(
        4,
        [](Group& group) {
          for (const Small& small : kSmall) {
            const Parameters parameters = make_parameters({{1001}, {3}}, at::kFloat);
            const auto buckets = make_buckets(parameters, {{0}, {1}}, group);
            fill(buckets, parameters, 2, group.rank());
            run_hook(*small.make(), buckets, group);
            EXPECT_TRUE(same_on_all_ranks(group, buckets));
            EXPECT_TRUE(results(buckets, parameters)[0]
                            .to(at::kDouble)
                            .allclose(average_at({1001}, 4, {0, 2, 0}), 0, 4 * small.epsilon));
          }
        },
        {.nodes = setting.nodes, .backend = setting.backend});
  }
}

TEST(CompressHooks, SendTheSmallTypeInPlaceFromMemoryMadeOnce) {
  run_ranks(3, [](Group& group) {
    for (const Small& small : kSmall) {
      const auto log = std::make_shared<SentLog>();
      Group counting = counting_group(group, log);
      const Parameters parameters = make_parameters({{40}, {25}, {6}}, at::kFloat);
      auto buckets = make_buckets(parameters, {{0}, {1}}, group);
      const auto hook = small.make();
      for (int step = 0; step < 3; ++step) {
        fill(buckets, parameters, step, group.rank());
        run_hook(*hook, buckets, counting);
      }
      ASSERT_EQ(log->all_reduces.size(), 6U);
      for (size_t i = 0; i < 6; ++i) {
        EXPECT_EQ(log->all_reduces[i].type, small.type);
        EXPECT_EQ(log->all_reduces[i].op, ReduceOp::Sum);
        EXPECT_EQ(log->all_reduces[i].numel, buckets[i % 2].buffer.numel());
      }
      EXPECT_EQ(log->allocations, (std::vector<int64_t>{2 * 43, 2 * 28}));

      // Other buckets: the first is as it was.
      buckets = make_buckets(parameters, {{0}, {1, 2}}, group);
      fill(buckets, parameters, 3, group.rank());
      run_hook(*hook, buckets, counting);
      EXPECT_EQ(log->allocations, (std::vector<int64_t>{2 * 43, 2 * 28, 2 * 37}));
      EXPECT_TRUE(same_on_all_ranks(group, buckets));
    }
  });
}

TEST(CompressHooks, ABucketOfASmallTypeIsAveragedAsItIs) {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [](Group& group) {
      for (const Small& small : kSmall) {
        for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
          const Parameters parameters = make_parameters({{77}}, type);
          const auto buckets = make_buckets(parameters, {{0}}, group);
          fill(buckets, parameters, 0, group.rank());
          const at::Tensor expected = buckets[0].buffer.clone();
          group.all_reduce(expected, {.op = ReduceOp::Average});
          const auto log = std::make_shared<SentLog>();
          Group counting = counting_group(group, log);
          run_hook(*small.make(), buckets, counting);
          EXPECT_TRUE(buckets[0].buffer.equal(expected));
          EXPECT_TRUE(log->allocations.empty());
        }
      }
    });
  }
}

TEST(CompressHooks, TheSumDoesNotOverflowWhereTheAverageDoesNot) {
  run_ranks(4, [](Group& group) {
    const Parameters parameters = make_parameters({{2}}, at::kFloat);
    const auto buckets = make_buckets(parameters, {{0}}, group);
    const at::Tensor& gradient = buckets[0].gradients[0];
    gradient.copy_(at::tensor({60'000.0, 1e-9}));
    run_hook(*fp16_compress(), buckets, group);
    EXPECT_TRUE(gradient.equal(at::tensor({60'000.0F, 0.0F}))) << gradient;
    gradient.fill_(1e6);
    run_hook(*fp16_compress(), buckets, group);
    EXPECT_TRUE(gradient.isinf().all().item<bool>()) << "beyond float16, on every rank";
    gradient.copy_(at::tensor({0x1p30, 0x1p-40}));
    run_hook(*bf16_compress(), buckets, group);
    EXPECT_TRUE(gradient.equal(at::tensor({0x1p30F, 0x1p-40F}))) << gradient;
  });
}

TEST(CompressHooks, AnEmptyBucketSendsNothing) {
  run_ranks(2, [](Group& group) {
    const auto log = std::make_shared<SentLog>();
    Group counting = counting_group(group, log);
    const std::vector<GradBucket> buckets = {{.is_last = true, .buffer = at::empty({0})}};
    run_hook(*bf16_compress(), buckets, counting);
    EXPECT_TRUE(log->all_reduces.empty());
    EXPECT_TRUE(log->allocations.empty());
  });
}

// A lost rank was replaced: the survivors' hooks have memory of the old group, the new one's none.
TEST(CompressHooks, GoOnInANewGroupWithARankThatHasJustBegun) {
  run_ranks(3, [](Group& group) {
    const Parameters parameters = make_parameters({{1000}}, at::kFloat);
    const auto hook = bf16_compress();
    Group before = group.split(group.rank() == 2 ? -1 : 0);
    if (group.rank() != 2) {
      const auto buckets = make_buckets(parameters, {{0}}, before);
      fill(buckets, parameters, 0, before.rank());
      run_hook(*hook, buckets, before);
    }
    const auto buckets = make_buckets(parameters, {{0}}, group);
    fill(buckets, parameters, 1, group.rank());
    run_hook(*hook, buckets, group);
    EXPECT_TRUE(same_on_all_ranks(group, buckets));
    EXPECT_TRUE(results(buckets, parameters)[0]
                    .to(at::kDouble)
                    .allclose(average_at({1000}, 3, {0, 1, 0}), 0, 4 * 0x1p-8));
  });
}

}  // namespace
}  // namespace lockstep

// Shards, the optimizer in backward, hooks, other groups, bucket sizes found by trying.

#include <set>

#include <gmock/gmock.h>

#include <lockstep/base/error.h>

#include "ddp/nets.h"

namespace lockstep {
namespace {

using testing_support::run_ranks;

// ---- shards ----

// Six steps over 8 shards; the model's bits afterwards, as one number per rank.
torch::Tensor train_in_shards(Group& group, int shards) {
  Net net = make_net();
  net->to(torch::kFloat);
  DistributedDataParallel ddp(net, group, {.bucket_bytes = 300, .shards = shards});
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
  EXPECT_EQ(ddp.num_local_shards(), shards / group.size());
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    const torch::Tensor batch = whole_batch(shards, step).to(torch::kFloat);
    for (int i = 0; i < ddp.num_local_shards(); ++i) {
      loss_of(ddp(rows_of(batch, ddp.first_shard() + i))).backward();
    }
    optimizer.step();
  }
  expect_equal_on_all_ranks(group, net);
  std::vector<torch::Tensor> flat;
  for (const auto& parameter : net->parameters()) {
    flat.push_back(parameter.detach().reshape({-1}));
  }
  return torch::cat(flat);
}

TEST(Ddp, EightShardsGiveTheSameBitsOnAnyNumberOfRanks) {
  for (const int world : {2, 4, 8}) {
    run_ranks(world, [](Group& group) {
      Group alone = make_single_group();
      const torch::Tensor expected = train_in_shards(alone, 8);
      EXPECT_TRUE(train_in_shards(group, 8).equal(expected));
    });
  }
}

TEST(Ddp, ShardsThatDoNotFitAreRefused) {
  EXPECT_THROW(DistributedDataParallel(make_net(), make_single_group(), {.shards = 3}), UsageError);
  EXPECT_THROW(DistributedDataParallel(make_net(), make_single_group(), {.shards = -2}),
               UsageError);
  DistributedDataParallel ddp(make_net(), make_single_group(), {.shards = 2});
  EXPECT_THROW((void)ddp.no_sync(), UsageError);
  Net half = make_net();
  half->to(torch::kBFloat16);
  EXPECT_THROW(DistributedDataParallel(half, make_single_group(), {.shards = 2}), UsageError);
  run_ranks(3, [](Group& group) {
    EXPECT_THROW(DistributedDataParallel(make_net(), group, {.shards = 4}), UsageError);
  });
}

// ---- the optimizer in backward ----

template <typename Optimizer, typename Options>
void step_in_backward_beside_step(Group& group, const Options& options, DdpOptions ddp_options,
                                  int64_t width = kSmallWidth) {
  Net net = make_net(1, width);
  Net ordinary = make_net(1, width);
  DistributedDataParallel ddp(net, group, ddp_options);
  DistributedDataParallel ordinary_ddp(ordinary, group, ddp_options);
  Optimizer optimizer(net->parameters(), options);
  Optimizer ordinary_optimizer(ordinary->parameters(), options);
  ddp.step_in_backward(optimizer);
  for (int step = 0; step < 5; ++step) {
    const torch::Tensor rows = rows_of(whole_batch(group.size(), step), group.rank());
    ordinary_optimizer.zero_grad();
    if (step % 2 == 1) {
      const auto guard = ddp.no_sync();
      const auto ordinary_guard = ordinary_ddp.no_sync();
      loss_of(ddp(rows * 2)).backward();
      loss_of(ordinary_ddp(rows * 2)).backward();
    }
    loss_of(ddp(rows)).backward();
    loss_of(ordinary_ddp(rows)).backward();
    ordinary_optimizer.step();
    for (const auto& parameter : net->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
    }
  }
  expect_same_bits(net, ordinary);
}

TEST(Ddp, TheOptimizerInBackwardGivesTheSameBits) {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [](Group& group) {
      const DdpOptions buckets{.bucket_bytes = 300, .first_bucket_bytes = 64};
      step_in_backward_beside_step<torch::optim::SGD>(
          group, torch::optim::SGDOptions(0.1).momentum(0.9), buckets);
      step_in_backward_beside_step<torch::optim::AdamW>(group, torch::optim::AdamWOptions(0.01),
                                                        buckets);
      step_in_backward_beside_step<torch::optim::Adam>(
          group, torch::optim::AdamOptions(0.01),
          {.bucket_bytes = 300, .find_unused_parameters = true});
      for (const Overlap overlap : {Overlap::Always, Overlap::Never}) {
        step_in_backward_beside_step<torch::optim::SGD>(group, torch::optim::SGDOptions(0.1),
                                                        {.overlap = overlap}, kLargeWidth);
      }
    });
  }
}

TEST(Ddp, TheOptimizerInBackwardRefusesWhatItCannotDo) {
  Net net = make_net();
  Net other = make_net();
  DistributedDataParallel ddp(net, make_single_group());
  torch::optim::LBFGS lbfgs(net->parameters());
  EXPECT_THROW(ddp.step_in_backward(lbfgs), UsageError);
  torch::optim::SGD foreign(other->parameters(), 0.1);
  EXPECT_THROW(ddp.step_in_backward(foreign), UsageError);
  torch::optim::SGD own(net->parameters(), 0.1);
  ddp.step_in_backward(own);
  EXPECT_THROW(ddp.clip_grad_norm(1), UsageError);
}

// ---- hooks and other groups ----

TEST(Ddp, AHookReplacesTheAverageAndCanBeChangedBetweenSteps) {
  run_ranks(2, [](Group& group) {
    Net net = make_net();
    DistributedDataParallel ddp(net, group, {.comm_hook = allreduce_hook()});
    const auto gradient = [&] {
      net->zero_grad();
      loss_of(ddp(rows_of(whole_batch(2), group.rank()))).backward();
      return net->first->weight.grad().clone();
    };
    const torch::Tensor average = gradient();
    ddp.set_comm_hook(make_comm_hook([](const GradBucket& bucket, Group& ranks) {
      return ranks.all_reduce_async(bucket.buffer, {.op = ReduceOp::Sum});
    }));
    EXPECT_TRUE(gradient().equal(average * 2));
    ddp.set_comm_hook(nullptr);
    EXPECT_TRUE(gradient().equal(average));
    EXPECT_THROW(make_comm_hook({}), UsageError);
  });
}

TEST(Ddp, GoesOnInANewGroupWithTheSameGradientMemory) {
  run_ranks(4, [](Group& group) {
    Net net = make_net();
    DistributedDataParallel ddp(net, group, {.bucket_bytes = 300});
    loss_of(ddp(rows_of(whole_batch(4), group.rank()))).backward();
    net->zero_grad();
    loss_of(ddp(rows_of(whole_batch(4), group.rank()))).backward();
    const void* place = net->first->weight.grad().const_data_ptr();
    Group half = group.split(group.rank() / 2);
    ddp.rebind(half);
    net->zero_grad();
    loss_of(ddp(rows_of(whole_batch(2), half.rank()))).backward();
    EXPECT_EQ(net->first->weight.grad().const_data_ptr(), place);
    Net reference = make_net();
    loss_of(reference(whole_batch(2))).backward();
    EXPECT_TRUE(net->first->weight.grad().allclose(reference->first->weight.grad(), 1e-9, 1e-12));
  });
}

TEST(Ddp, AutoFindsABucketSize) {
  run_ranks(2, [](Group& group) {
    torch::nn::Sequential net;
    for (int layer = 0; layer < 6; ++layer) {
      net->push_back(torch::nn::Linear(300, 300));
    }
    DistributedDataParallel ddp(net, group, {.bucket_bytes = kAutoBucketBytes});
    std::set<std::vector<int64_t>> layouts;
    for (int step = 0; step < 16; ++step) {
      net->zero_grad();
      ddp(torch::ones({1, 300})).sum().backward();
      layouts.insert(ddp.bucket_sizes_bytes());
    }
    EXPECT_GE(layouts.size(), 2u);
    const auto found = ddp.bucket_sizes_bytes();
    EXPECT_TRUE(same_on_all_ranks(group, torch::tensor(found)));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      ddp(torch::ones({1, 300})).sum().backward();
      EXPECT_EQ(ddp.bucket_sizes_bytes(), found);  // it has made up its mind
    }
  });
}

}  // namespace
}  // namespace lockstep

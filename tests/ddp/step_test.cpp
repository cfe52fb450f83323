// A step against the same model on one process with the whole batch: buckets, layouts,
// accumulation, shards, hooks and the optimizer in backward.

#include <gmock/gmock.h>

#include <lockstep/base/error.h>

#include "ddp/nets.h"

namespace lockstep {
namespace {

using testing_support::run_ranks;

constexpr auto kWorlds = {1, 2, 3, 4};

TEST(Ddp, StartsFromTheWeightsAndBuffersOfRankZero) {
  for (const int world : kWorlds) {
    run_ranks(world, [](Group& group) {
      Net net = make_net(static_cast<uint64_t>(group.rank()));
      net->scale.fill_(group.rank() + 1);
      const DistributedDataParallel ddp(net, group);
      Net reference = make_net(0);
      expect_same_bits(net, reference);
      EXPECT_EQ(net->scale.item<double>(), 1);
    });
  }
}

TEST(Ddp, WithoutInitSyncRanksKeepTheirOwn) {
  run_ranks(2, [](Group& group) {
    Net net = make_net(static_cast<uint64_t>(group.rank()));
    const DistributedDataParallel ddp(net, group, {.init_sync = false});
    Net reference = make_net(static_cast<uint64_t>(group.rank()));
    expect_same_bits(net, reference);
  });
}

// Trains a net under the wrapper and another on the whole batch; `options` may differ, the result
// may not.
void train_beside_reference(Group& group, DdpOptions options, bool set_to_none = true) {
  Net net = make_net();
  Net reference = make_net();
  DistributedDataParallel ddp(net, group, std::move(options));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD reference_optimizer(reference->parameters(),
                                        torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 6; ++step) {
    const torch::Tensor batch = whole_batch(group.size(), step);
    optimizer.zero_grad(set_to_none);
    loss_of(ddp(rows_of(batch, group.rank()))).backward();
    optimizer.step();
    reference_optimizer.zero_grad();
    loss_of(reference(batch)).backward();
    reference_optimizer.step();
  }
  expect_close(net, reference);
  expect_equal_on_all_ranks(group, net);
}

TEST(Ddp, TrainsAsOneProcessWithTheWholeBatchWhateverTheBuckets) {
  for (const int world : kWorlds) {
    run_ranks(world, [](Group& group) {
      train_beside_reference(group, {});
      train_beside_reference(group, {.bucket_bytes = 300, .first_bucket_bytes = 64});
      train_beside_reference(group, {.bucket_bytes = 1, .first_bucket_bytes = 1});
      train_beside_reference(group, {.bucket_bytes = kAutoBucketBytes});
      train_beside_reference(group, {.static_graph = true});
      train_beside_reference(group, {.find_unused_parameters = true});
    });
  }
}

TEST(Ddp, TrainsOnEveryBackend) {
  for (const auto& setting : testing_support::kEveryBackend) {
    run_ranks(4, [](Group& group) { train_beside_reference(group, {.bucket_bytes = 300}); },
              {.nodes = setting.nodes, .backend = setting.backend});
  }
}

TEST(Ddp, BothKindsOfZeroGradWork) {
  run_ranks(2, [](Group& group) {
    train_beside_reference(group, {.bucket_bytes = 300}, true);
    train_beside_reference(group, {.bucket_bytes = 300}, false);
  });
}

TEST(Ddp, GradientsAreViewsOfBucketsAndStayThere) {
  run_ranks(2, [](Group& group) {
    Net net = make_net();
    DistributedDataParallel ddp(net, group, {.bucket_bytes = 300, .first_bucket_bytes = 64});
    std::vector<const void*> places;
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      loss_of(ddp(rows_of(whole_batch(2), group.rank()))).backward();
      std::vector<const void*> now;
      for (const auto& parameter : net->parameters()) {
        now.push_back(parameter.grad().const_data_ptr());
      }
      if (step >= 2) {  // the second step has laid the buckets out anew
        EXPECT_EQ(now, places);
      }
      places = now;
    }
    EXPECT_GE(ddp.bucket_sizes_bytes().size(), 3u);
    int64_t sum = 0;
    for (const int64_t bytes : ddp.bucket_sizes_bytes()) {
      sum += bytes;
    }
    int64_t gradients = 0;
    for (const auto& parameter : net->parameters()) {
      gradients += static_cast<int64_t>(parameter.nbytes());
    }
    EXPECT_LE(sum, gradients + 64 * 6);  // one copy, and a line per gradient
  });
}

TEST(Ddp, BucketsAreLaidOutInTheOrderInWhichRankZeroGetsGradients) {
  run_ranks(2, [](Group& group) {
    // Registered in the order of use reversed: the first plan has them the wrong way round.
    struct Backwards : torch::nn::Module {
      Backwards() {
        last = register_module("last", torch::nn::Linear(8, 1));
        first = register_module("first", torch::nn::Linear(4, 8));
      }
      torch::Tensor forward(const torch::Tensor& x) { return last(first(x)); }
      torch::nn::Linear first{nullptr};
      torch::nn::Linear last{nullptr};
    };
    auto net = std::make_shared<Backwards>();
    std::vector<std::vector<std::string>> sent;
    auto hook = make_comm_hook([&](const GradBucket& bucket, Group& ranks) {
      sent.push_back(bucket.names);
      return ranks.all_reduce_async(bucket.buffer, {.op = ReduceOp::Average});
    });
    DistributedDataParallel ddp(net, group,
                                {.bucket_bytes = 1, .first_bucket_bytes = 1, .comm_hook = hook});
    for (int step = 0; step < 2; ++step) {
      sent.clear();
      net->zero_grad();
      ddp(torch::ones({2, 4})).sum().backward();
    }
    ASSERT_EQ(sent.size(), 4u);
    EXPECT_THAT(sent[0][0], ::testing::StartsWith("last"));
    EXPECT_THAT(sent[1][0], ::testing::StartsWith("last"));
    EXPECT_THAT(sent[3][0], ::testing::StartsWith("first"));
  });
}

TEST(Ddp, GroupOfOneHasNoBucketsAndLeavesGradientsAlone) {
  Net net = make_net();
  DistributedDataParallel ddp(net, make_single_group());
  loss_of(ddp(whole_batch(1))).backward();
  Net reference = make_net();
  loss_of(reference(whole_batch(1))).backward();
  EXPECT_TRUE(net->first->weight.grad().equal(reference->first->weight.grad()));
  EXPECT_TRUE(ddp.bucket_sizes_bytes().empty());
  EXPECT_EQ(ddp.last_step().step, 0);
}

// ---- parameters of every kind ----

// Tied, frozen, channels-last, transposed, scalar, empty, and of three types.
struct OddImpl : torch::nn::Module {
  OddImpl() {
    torch::manual_seed(3);
    conv = register_module("conv", torch::nn::Conv2d(3, 8, 3));
    point = register_module("point", torch::nn::Conv2d(8, 8, 1));
    for (auto& layer : {conv, point}) {
      layer->weight.set_data(layer->weight.contiguous(torch::MemoryFormat::ChannelsLast));
    }
    tied = register_parameter("tied", torch::randn({8, 8}));
    register_parameter("tied_again", tied);
    frozen = register_parameter("frozen", torch::randn({8}), /*requires_grad=*/false);
    transposed = register_parameter("transposed", torch::randn({8, 5}).t().detach());
    scalar = register_parameter("scalar", torch::tensor(0.5));
    none = register_parameter("none", torch::empty({0, 4}));
    wide = register_parameter("wide", torch::randn({8}, torch::kDouble));
    half = register_parameter("half", torch::randn({8}).to(torch::kBFloat16));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = point(conv(x)).mean({2, 3});
    y = torch::mm(torch::tanh(torch::mm(y, tied)), tied) * scalar + frozen;
    const auto in_double = y.to(torch::kDouble) * wide;
    const auto in_half = y.to(torch::kBFloat16) * half;
    y = in_double.to(torch::kFloat) + in_half.to(torch::kFloat);
    return torch::mm(y, transposed.t()).mean() + none.sum();
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Conv2d point{nullptr};
  torch::Tensor tied, frozen, transposed, scalar, none, wide, half;
};
TORCH_MODULE(Odd);

TEST(Ddp, ParametersOfEveryKindGetTheAverageInTheirOwnLayout) {
  run_ranks(2, [](Group& group) {
    Odd net;
    Odd other;  // what the other rank computes
    const auto input = [](int rank) { return torch::full({2, 3, 6, 6}, rank + 1.0f); };
    DistributedDataParallel ddp(net, group);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      ddp(input(group.rank())).backward();
    }
    Odd mine;
    mine->forward(input(group.rank())).backward();
    other->forward(input(1 - group.rank())).backward();
    const auto theirs = other->named_parameters();
    const auto ours = mine->named_parameters();
    for (const auto& item : net->named_parameters()) {
      if (!item.value().requires_grad()) {
        EXPECT_FALSE(item.value().grad().defined());
        continue;
      }
      const torch::Tensor sum = ours[item.key()].grad() + theirs[item.key()].grad();
      EXPECT_TRUE(item.value().grad().allclose(sum / 2, 1e-3, 1e-6)) << item.key();
      EXPECT_EQ(item.value().grad().strides(), item.value().strides()) << item.key();
      EXPECT_EQ(item.value().grad().scalar_type(), item.value().scalar_type()) << item.key();
    }
  });
}

TEST(Ddp, IgnoredParametersAndBuffersStayEachRanksOwn) {
  run_ranks(2, [](Group& group) {
    Net net = make_net(static_cast<uint64_t>(group.rank()));
    net->scale.fill_(group.rank() + 1);
    Net before = make_net(static_cast<uint64_t>(group.rank()));
    DistributedDataParallel ddp(net, group, {.ignored = {"spare.weight", "scale"}});
    EXPECT_TRUE(net->spare->weight.equal(before->spare->weight));
    EXPECT_EQ(net->scale.item<double>(), group.rank() + 1);
    loss_of(ddp(rows_of(whole_batch(2), group.rank()))).backward();
    EXPECT_FALSE(same_on_all_ranks(group, net->spare->weight.grad()));
    EXPECT_TRUE(same_on_all_ranks(group, net->spare->bias.grad()));
    EXPECT_THROW(DistributedDataParallel(net, group, {.ignored = {"spar"}}), UsageError);
  });
}

// ---- accumulation ----

TEST(Ddp, GradientsThatAreNotZeroedAccumulateOnAllRanksAlike) {
  run_ranks(2, [](Group& group) {
    Net net = make_net();
    DistributedDataParallel ddp(net, group, {.bucket_bytes = 300});
    loss_of(ddp(rows_of(whole_batch(2), group.rank()))).backward();
    const torch::Tensor once = net->first->weight.grad().clone();
    for (int more = 2; more <= 4; ++more) {
      loss_of(ddp(rows_of(whole_batch(2), group.rank()))).backward();
      EXPECT_TRUE(net->first->weight.grad().allclose(once * more, 1e-9, 1e-12)) << more;
    }
  });
}

// Four micro-batches, three of them without synchronisation, against one backward of all.
void accumulate(Group& group, DdpOptions options, bool whole_inside, bool set_to_none) {
  constexpr int kMicroBatches = 4;
  Net net = make_net();
  Net reference = make_net();
  DistributedDataParallel ddp(net, group, std::move(options));
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad(set_to_none);
    reference_optimizer.zero_grad();
    torch::Tensor whole = torch::zeros({}, torch::kDouble);
    for (int micro = 0; micro < kMicroBatches; ++micro) {
      const torch::Tensor batch = whole_batch(group.size(), step * kMicroBatches + micro);
      whole = whole + loss_of(reference(batch));
      const torch::Tensor rows = rows_of(batch, group.rank());
      if (micro + 1 == kMicroBatches) {
        loss_of(ddp(rows)).backward();
      } else if (whole_inside) {
        const auto guard = ddp.no_sync();
        loss_of(ddp(rows)).backward();
      } else {
        const torch::Tensor loss = loss_of(ddp(rows));
        const auto guard = ddp.no_sync();  // only the backward is inside
        loss.backward();
      }
      if (micro == 1 && group.size() > 1) {
        EXPECT_FALSE(same_on_all_ranks(group, net->first->weight.grad()));
      }
    }
    whole.backward();
    optimizer.step();
    reference_optimizer.step();
  }
  expect_close(net, reference);
  expect_equal_on_all_ranks(group, net);
}

TEST(Ddp, NoSyncAccumulatesFromTheFirstStepOn) {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [](Group& group) {
      for (const bool whole_inside : {true, false}) {
        accumulate(group, {.bucket_bytes = 300}, whole_inside, true);
        accumulate(group, {.bucket_bytes = 300}, whole_inside, false);
        accumulate(group, {.bucket_bytes = 300, .static_graph = true}, whole_inside, true);
        accumulate(group, {.find_unused_parameters = true}, whole_inside, true);
      }
    });
  }
}

TEST(Ddp, SeveralForwardsBeforeOneBackwardAndSeveralBackwards) {
  run_ranks(2, [](Group& group) {
    Net net = make_net();
    Net reference = make_net();
    DistributedDataParallel ddp(net, group, {.bucket_bytes = 300});
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      reference->zero_grad();
      const torch::Tensor a = whole_batch(2, 2 * step);
      const torch::Tensor b = whole_batch(2, 2 * step + 1);
      const auto two =
          loss_of(ddp(rows_of(a, group.rank()))) + loss_of(ddp(rows_of(b, group.rank())));
      two.backward();
      const auto again = loss_of(ddp(rows_of(a, group.rank())));
      again.backward({}, /*retain_graph=*/true);
      again.backward();
      (loss_of(reference(a)) * 3 + loss_of(reference(b))).backward();
      const auto expected = reference->named_parameters();
      for (const auto& item : net->named_parameters()) {
        EXPECT_TRUE(item.value().grad().allclose(expected[item.key()].grad(), 1e-9, 1e-12))
            << item.key() << " in step " << step;
      }
    }
  });
}

TEST(Ddp, AnIgnoredOutputAndInferenceDisturbNothing) {
  run_ranks(2, [](Group& group) {
    Net net = make_net();
    DistributedDataParallel ddp(net, group);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      ddp(whole_batch(1));  // nobody looks at it
      {
        const torch::NoGradGuard no_grad;
        if (group.rank() == 0) {
          ddp(whole_batch(1));  // one rank alone may look at the model
        }
      }
      net->eval();
      if (group.rank() == 1) {
        ddp(whole_batch(1));
      }
      net->train();
      const torch::Tensor x = whole_batch(1).requires_grad_();
      const auto gradient = torch::autograd::grad({ddp(x).sum()}, {x});  // no step either
      EXPECT_TRUE(gradient[0].defined());
      loss_of(ddp(rows_of(whole_batch(2), group.rank()))).backward();
      EXPECT_TRUE(same_on_all_ranks(group, net->first->weight.grad()));
      EXPECT_EQ(ddp.last_step().step, step + 1);
    }
  });
}

// ---- times, clipping, verification ----

TEST(Ddp, TimesOfTheLastStepAreMeasured) {
  run_ranks(2, [](Group& group) {
    Net net = make_net();
    DistributedDataParallel ddp(net, group);
    for (int64_t step = 1; step <= 3; ++step) {
      net->zero_grad();
      loss_of(ddp(whole_batch(1))).backward();
      const StepTimes times = ddp.last_step();
      EXPECT_EQ(times.step, step);
      EXPECT_GT(times.copy_in.count(), 0);
      EXPECT_GT(times.reduce.count(), 0);
      EXPECT_GT(times.wait.count(), 0);
      EXPECT_GE(times.backward, times.copy_in);
      EXPECT_GE(times.backward, times.wait);
    }
  });
}

TEST(Ddp, ClipGradNormIsThatOfTheSynchronisedGradient) {
  for (const int world : {1, 2}) {
    run_ranks(world, [](Group& group) {
      Net net = make_net();
      Net reference = make_net();
      DistributedDataParallel ddp(net, group, {.bucket_bytes = 300});
      const torch::Tensor batch = whole_batch(group.size());
      for (const double limit : {1e-3, 1e3}) {
        net->zero_grad();
        reference->zero_grad();
        loss_of(ddp(rows_of(batch, group.rank()))).backward();
        loss_of(reference(batch)).backward();
        const double norm = ddp.clip_grad_norm(limit);
        const double expected = torch::nn::utils::clip_grad_norm_(reference->parameters(), limit);
        EXPECT_NEAR(norm, expected, 1e-9 * expected);
        EXPECT_TRUE(net->first->weight.grad().allclose(reference->first->weight.grad(), 1e-9));
      }
      EXPECT_THROW(ddp.clip_grad_norm(0), UsageError);
    });
  }
}

TEST(Ddp, VerifyFindsTheFirstParameterThatDiffers) {
  run_ranks(3, [](Group& group) {
    Net net = make_net();
    DistributedDataParallel ddp(net, group, {.verify_every = 2});
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const auto step = [&] {
      optimizer.zero_grad();
      loss_of(ddp(rows_of(whole_batch(3), group.rank()))).backward();
      optimizer.step();
    };
    for (int i = 0; i < 4; ++i) {
      step();
    }
    ddp.verify();
    if (group.rank() == 2) {
      const torch::NoGradGuard no_grad;
      net->second->bias[0] += 1e-15;
      net->spare->weight[0][0] += 1;
    }
    try {
      step();
      ADD_FAILURE() << "not found";
    } catch (const DesyncError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("'second.bias' of rank 2 differs"));
    }
  });
}

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
void step_in_backward_beside_step(Group& group, const Options& options, DdpOptions ddp_options) {
  Net net = make_net();
  Net ordinary = make_net();
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
    auto net = torch::nn::Sequential(torch::nn::Linear(700, 700), torch::nn::Linear(700, 700),
                                     torch::nn::Linear(700, 700));
    DistributedDataParallel ddp(net, group, {.bucket_bytes = kAutoBucketBytes});
    std::set<std::vector<int64_t>> layouts;
    for (int step = 0; step < 16; ++step) {
      net->zero_grad();
      ddp(torch::ones({1, 700})).sum().backward();
      layouts.insert(ddp.bucket_sizes_bytes());
    }
    EXPECT_GE(layouts.size(), 2u);
    const auto found = ddp.bucket_sizes_bytes();
    EXPECT_TRUE(same_on_all_ranks(group, torch::tensor(found)));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      ddp(torch::ones({1, 700})).sum().backward();
      EXPECT_EQ(ddp.bucket_sizes_bytes(), found);  // it has made up its mind
    }
  });
}

}  // namespace
}  // namespace lockstep

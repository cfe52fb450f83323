// A step against the same model on one process with the whole batch: buckets, layouts, every kind
// of parameter, times, clipping, verification.

#include <set>

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
void train_beside_reference(Group& group, DdpOptions options, bool set_to_none = true,
                            int64_t width = kSmallWidth) {
  Net net = make_net(1, width);
  Net reference = make_net(1, width);
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
    run_ranks(4,
              [](Group& group) {
                train_beside_reference(group, {.bucket_bytes = 300});
                train_beside_reference(group, {}, true, kLargeWidth);
              },
              {.nodes = setting.nodes, .backend = setting.backend});
  }
}

TEST(Ddp, BothKindsOfZeroGradWork) {
  run_ranks(2, [](Group& group) {
    for (const bool set_to_none : {true, false}) {
      train_beside_reference(group, {.bucket_bytes = 300}, set_to_none);
      train_beside_reference(group, {}, set_to_none, kLargeWidth);
    }
  });
}

TEST(Ddp, OverlapOrNotGivesTheSame) {
  run_ranks(2, [](Group& group) {
    for (const Overlap overlap : {Overlap::Always, Overlap::Never}) {
      train_beside_reference(group, {.bucket_bytes = 300, .overlap = overlap});
      train_beside_reference(group, {.overlap = overlap}, true, kLargeWidth);
    }
  });
}

TEST(Ddp, LargeGradientsAreReducedWhereAutogradWroteThem) {
  run_ranks(2, [](Group& group) {
    Net net = make_net(1, kLargeWidth);
    DistributedDataParallel ddp(net, group);
    EXPECT_THAT(ddp.bucket_sizes_bytes(),
                ::testing::IsSupersetOf({kLargeWidth * 4 * 8, kLargeWidth * 2 * 8}));
    std::set<const void*> seen;
    for (int step = 0; step < 6; ++step) {
      net->zero_grad();
      loss_of(ddp(rows_of(whole_batch(2, step), group.rank()))).backward();
      EXPECT_TRUE(same_on_all_ranks(group, net->first->weight.grad()));
      seen.insert(net->first->weight.grad().const_data_ptr());
    }
    EXPECT_EQ(seen.size(), 1u);  // the cell of that size, again and again
    // A gradient that a user keeps stays what it was.
    const torch::Tensor kept = net->first->weight.grad();
    const torch::Tensor values = kept.clone();
    net->zero_grad();
    loss_of(ddp(rows_of(whole_batch(2, 7), group.rank()))).backward();
    EXPECT_TRUE(kept.equal(values));
    EXPECT_NE(net->first->weight.grad().const_data_ptr(), kept.const_data_ptr());
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
      net->zero_grad(/*set_to_none=*/true);
      EXPECT_EQ(ddp.clip_grad_norm(1e-9), 0.0) << "without any gradient";
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

}  // namespace
}  // namespace lockstep

// Graphs that are not the same everywhere: unused parameters, checkpointed parts, buffers, sparse
// gradients, ranks with fewer batches.

#include <gmock/gmock.h>

#include <lockstep/base/error.h>

#include "ddp/nets.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using testing_support::rank_argument;
using testing_support::run_ranks;

// ---- unused parameters ----

TEST(Unused, AParameterThatSomeRanksReachGetsTheAverageWithZeros) {
  for (const int world : {2, 3}) {
    run_ranks(world, [](Group& group) {
      Net net = make_net();
      DistributedDataParallel ddp(net, group,
                                  {.bucket_bytes = 300, .find_unused_parameters = true});
      const torch::Tensor x = whole_batch(1);
      for (int step = 0; step < 4; ++step) {
        net->zero_grad();
        const int user = step % group.size();  // another rank in each step
        loss_of(ddp(x, group.rank() == user)).backward();
        Net reference = make_net();
        loss_of(reference(x, true)).backward();
        const torch::Tensor expected = reference->spare->weight.grad() / group.size();
        EXPECT_TRUE(net->spare->weight.grad().allclose(expected, 1e-9, 1e-12)) << step;
        EXPECT_TRUE(same_on_all_ranks(group, net->spare->weight.grad()));
      }
    });
  }
}

TEST(Unused, OneThatNoRankReachesKeepsItsGradientAsItWas) {
  run_ranks(3, [](Group& group) {
    Net net = make_net();
    DistributedDataParallel ddp(net, group, {.bucket_bytes = 300, .find_unused_parameters = true});
    const torch::Tensor x = rows_of(whole_batch(3), group.rank());
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      loss_of(ddp(x, false)).backward();
      EXPECT_FALSE(net->spare->weight.grad().defined());
      EXPECT_TRUE(same_on_all_ranks(group, net->first->weight.grad()));
    }
    loss_of(ddp(x, true)).backward();
    const torch::Tensor before = net->spare->weight.grad().clone();
    loss_of(ddp(x, false)).backward();
    EXPECT_TRUE(net->spare->weight.grad().equal(before));  // bit for bit, with three ranks too
  });
}

TEST(Unused, LargeParametersToo) {
  run_ranks(2, [](Group& group) {
    torch::manual_seed(1);
    auto a = torch::nn::Linear(600, 600);
    auto b = torch::nn::Linear(600, 600);
    struct Either : torch::nn::Module {
      Either(torch::nn::Linear a, torch::nn::Linear b)
          : first(register_module("first", std::move(a))),
            second(register_module("second", std::move(b))) {}
      torch::Tensor forward(const torch::Tensor& x, bool use_second) {
        return use_second ? second(x) : first(x);
      }
      torch::nn::Linear first, second;
    };
    DistributedDataParallel ddp(std::make_shared<Either>(a, b), group,
                                {.find_unused_parameters = true});
    const torch::Tensor x = torch::ones({1, 600});
    for (int step = 0; step < 4; ++step) {
      a->zero_grad();
      b->zero_grad();
      ddp(x, group.rank() == 1).sum().backward();  // each rank its own layer
      EXPECT_TRUE(a->weight.grad().equal(torch::full({600, 600}, 0.5f)));
      EXPECT_TRUE(b->weight.grad().equal(torch::full({600, 600}, 0.5f)));
      a->zero_grad();
      b->zero_grad();
      ddp(x, true).sum().backward();
      EXPECT_FALSE(a->weight.grad().defined());
      EXPECT_TRUE(b->weight.grad().equal(torch::ones({600, 600})));
    }
    const torch::Tensor before = b->weight.grad().clone();
    ddp(x, false).sum().backward();
    EXPECT_TRUE(b->weight.grad().equal(before));
  });
}

TEST(Unused, UsedUnderNoSyncCountsInTheNextSynchronisedStep) {
  run_ranks(2, [](Group& group) {
    Net net = make_net();
    DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
    const torch::Tensor x = rows_of(whole_batch(2), group.rank());
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      {
        const auto guard = ddp.no_sync();
        loss_of(ddp(x, true)).backward();
      }
      loss_of(ddp(x, false)).backward();
      EXPECT_TRUE(same_on_all_ranks(group, net->spare->weight.grad()));
      Net reference = make_net();
      loss_of(reference(whole_batch(2), true)).backward();
      EXPECT_TRUE(net->spare->weight.grad().allclose(reference->spare->weight.grad(), 1e-9, 1e-12));
    }
  });
}

TEST(Unused, ARankWhoseBackwardReachesNothingTakesPart) {
  run_ranks(2, [](Group& group) {
    Net net = make_net();
    DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      const torch::Tensor x = whole_batch(1).requires_grad_();
      const torch::Tensor output = ddp(x, true);
      if (group.rank() == 0) {
        loss_of(output).backward();
      } else {
        // Through the output, but every path to a parameter is cut.
        (output.detach() * x.sum() + output * 0).sum().backward();
      }
      EXPECT_TRUE(same_on_all_ranks(group, net->first->weight.grad()));
    }
  });
}

TEST(Unused, WithoutTheOptionEveryRankNamesParameterAndRank) {
  run_ranks(3, [](Group& group) {
    Net net = make_net();
    DistributedDataParallel ddp(net, group, {.bucket_bytes = 300});
    const auto step = [&](int skipping) {
      net->zero_grad();
      loss_of(ddp(whole_batch(1), group.rank() != skipping)).backward();
    };
    for (int before = 0; before < 3; ++before) {  // in the first step and later ones
      try {
        step(1);
        ADD_FAILURE() << "not found";
      } catch (const UsageError& error) {
        EXPECT_THAT(error.what(), HasSubstr("'spare.weight' of rank 1 got no gradient in step"));
        EXPECT_THAT(error.what(), HasSubstr("find_unused_parameters"));
      }
      step(-1);  // and the ranks are still together
      EXPECT_TRUE(same_on_all_ranks(group, net->spare->weight.grad()));
    }
  });
}

TEST(StaticGraph, WhatTheFirstStepDoesNotReachIsNotWaitedFor) {
  run_ranks(2, [](Group& group) {
    Net net = make_net();
    DistributedDataParallel ddp(net, group, {.bucket_bytes = 300, .static_graph = true});
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      loss_of(ddp(rows_of(whole_batch(2), group.rank()), false)).backward();
      EXPECT_FALSE(net->spare->weight.grad().defined());
      EXPECT_TRUE(same_on_all_ranks(group, net->first->weight.grad()));
    }
    try {
      loss_of(ddp(whole_batch(1), group.rank() == 1)).backward();
      ADD_FAILURE() << "a graph that changed was not found";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("static_graph: parameter 'spare.weight' of rank 1"));
    }
  });
}

// ---- a backward inside a backward ----

// Runs `layer` without keeping its graph, and again in backward: gradient checkpointing.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               torch::nn::Linear layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] =
        c10::IValue::make_capsule(c10::make_intrusive<Holder>(std::move(layer)));
    return context_layer(context)(x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const torch::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const torch::AutoGradMode with_grad(true);
    context_layer(context)(x).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }

 private:
  struct Holder : torch::CustomClassHolder {
    explicit Holder(torch::nn::Linear held) : layer(std::move(held)) {}
    torch::nn::Linear layer;
  };
  static torch::nn::Linear context_layer(torch::autograd::AutogradContext* context) {
    return c10::static_intrusive_pointer_cast<Holder>(context->saved_data["layer"].toCapsule())
        ->layer;
  }
};

// The middle layer is used `num_uses` times, checkpointed each time.
struct CheckpointedImpl : torch::nn::Module {
  CheckpointedImpl() {
    torch::manual_seed(2);
    in = register_module("in", torch::nn::Linear(4, 8));
    middle = register_module("middle", torch::nn::Linear(8, 8));
    out = register_module("out", torch::nn::Linear(8, 1));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x, int num_uses, bool checkpoints = true) {
    auto y = in(x);
    for (int use = 0; use < num_uses; ++use) {
      y = torch::tanh(checkpoints ? Checkpoint::apply(y, middle) : middle(y));
    }
    return out(y);
  }
  torch::nn::Linear in{nullptr};
  torch::nn::Linear middle{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Checkpointed);

TEST(Checkpointed, PartsMayBeRunAgainInBackwardOnceOrSeveralTimes) {
  for (const int num_uses : {1, 3}) {
    for (const bool is_static : {false, true}) {
      run_ranks(
          2,
          [](Group& group) {
            const int uses = rank_argument()[0] - '0';
            Checkpointed net;
            DistributedDataParallel ddp(
                net, group, {.bucket_bytes = 1, .static_graph = rank_argument()[1] == 's'});
            for (int step = 0; step < 4; ++step) {
              net->zero_grad();
              const torch::Tensor batch = whole_batch(2, step);
              loss_of(ddp(rows_of(batch, group.rank()), uses)).backward();
              Checkpointed reference;
              loss_of(reference->forward(batch, uses, false)).backward();
              const auto expected = reference->named_parameters();
              for (const auto& item : net->named_parameters()) {
                EXPECT_TRUE(item.value().grad().allclose(expected[item.key()].grad(), 1e-9, 1e-12))
                    << item.key() << " in step " << step;
              }
            }
          },
          {.argument = std::to_string(num_uses) + (is_static ? "s" : "d")});
    }
  }
}

TEST(Checkpointed, MoreRunsThanInTheFirstStepAreAnErrorOnEveryRank) {
  run_ranks(2, [](Group& group) {
    Checkpointed net;
    DistributedDataParallel ddp(net, group, {.bucket_bytes = 1});
    loss_of(ddp(whole_batch(1), 1)).backward();
    try {
      loss_of(ddp(whole_batch(1), group.rank() == 1 ? 2 : 1)).backward();
      ADD_FAILURE() << "not found";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("of rank 1 got more gradients in step 2"));
    }
  });
}

// ---- buffers ----

struct CountingImpl : torch::nn::Module {
  CountingImpl() {
    layer = register_module("layer", torch::nn::Linear(4, 1));
    seen = register_buffer("seen", torch::zeros({3}));
    calls = register_buffer("calls", torch::zeros({1}, torch::kLong));
    flags = register_buffer("flags", torch::zeros({2}, torch::kBool));
    view = register_buffer("view", torch::zeros({4, 2}).t());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    seen_at_start = seen.clone();
    seen.add_(x.mean());
    calls.add_(1);
    view.add_(1);
    return layer(x) * (1 + seen.sum());
  }
  torch::nn::Linear layer{nullptr};
  torch::Tensor seen, calls, flags, view, seen_at_start;
};
TORCH_MODULE(Counting);

TEST(BroadcastBuffers, RankZerosOncePerStepAndNotWhenTurnedOff) {
  run_ranks(2, [](Group& group) {
    for (const bool broadcasts : {true, false}) {
      Counting net;
      DistributedDataParallel ddp(net, group, {.broadcast_buffers = broadcasts});
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        if (group.rank() == 1) {
          net->flags.fill_(true);
        }
        const torch::Tensor output = ddp(torch::full({2, 4}, group.rank() + 1.0f));
        EXPECT_EQ(same_on_all_ranks(group, net->seen_at_start), broadcasts || step == 0);
        EXPECT_EQ(net->flags[0].item<bool>(), !broadcasts && group.rank() == 1);
        output.sum().backward();
      }
      EXPECT_EQ(net->calls.item<int64_t>(), 3);
      EXPECT_EQ(net->view[1][3].item<float>(), 3);
    }
  });
}

// Two forwards before a backward, as in adversarial training: a broadcast between them must not
// spoil what the first one saved.
TEST(BroadcastBuffers, TwoForwardsOfABatchNormBeforeOneBackward) {
  run_ranks(2, [](Group& group) {
    torch::manual_seed(1);
    auto net = torch::nn::Sequential(torch::nn::Conv2d(1, 4, 3), torch::nn::BatchNorm2d(4));
    DistributedDataParallel ddp(net, group);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      const auto real = ddp(torch::randn({2, 1, 5, 5}));
      const auto fake = ddp(torch::randn({2, 1, 5, 5}));
      (real.sum() - fake.pow(2).sum()).backward();
      for (const auto& parameter : net->parameters()) {
        EXPECT_TRUE(same_on_all_ranks(group, parameter.grad()));
      }
    }
  });
}

// ---- sparse gradients ----

struct BagImpl : torch::nn::Module {
  BagImpl() {
    torch::manual_seed(4);
    words = register_module("words",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 3).sparse(true)));
    out = register_module("out", torch::nn::Linear(3, 1));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return ids.numel() == 0 ? out(torch::ones({1, 3})) : out(words(ids));
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Bag);

TEST(SparseGradients, RowsOfAllRanksAreAveragedAndARankMayHaveNone) {
  run_ranks(3, [](Group& group) {
    Bag net;
    DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
    const std::vector<torch::Tensor> ids = {torch::tensor({1, 2, 2}), torch::tensor({2, 9, 0}),
                                            torch::empty({0}, torch::kLong)};
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      ddp(ids[static_cast<size_t>(group.rank())]).sum().backward();
      torch::Tensor expected = torch::zeros({10, 3});
      for (const torch::Tensor& list : ids) {
        Bag alone;
        alone->forward(list).sum().backward();
        if (alone->words->weight.grad().defined()) {
          expected += alone->words->weight.grad().to_dense();
        }
      }
      ASSERT_TRUE(net->words->weight.grad().is_sparse());
      const torch::Tensor dense = net->words->weight.grad().to_dense();
      EXPECT_TRUE(dense.allclose(expected / 3));
      EXPECT_TRUE(same_on_all_ranks(group, dense));
      EXPECT_TRUE(same_on_all_ranks(group, net->out->weight.grad()));
    }
    net->zero_grad();
    ddp(torch::empty({0}, torch::kLong)).sum().backward();  // nobody has a row
    EXPECT_TRUE(same_on_all_ranks(group, net->out->weight.grad()));
  });
}

// ---- uneven inputs ----

int batches_of(int rank) {
  return 2 + 3 * rank;  // 2, 5, 8
}

TEST(Join, RanksThatRunOutTakePartWithZerosAndEndWithTheLastModel) {
  for (const int world : {1, 2, 3}) {
    for (const bool by_initial_size : {true, false}) {
      run_ranks(world,
                [](Group& group) {
                  const bool initial = rank_argument() == "initial";
                  const int64_t width = group.size() == 3 ? kLargeWidth : kSmallWidth;
                  Net net = make_net(1, width);
                  Net reference = make_net(1, width);
                  DistributedDataParallel ddp(net, group, {.bucket_bytes = 300});
                  const double rate = 1.6 / static_cast<double>(width);
                  torch::optim::SGD optimizer(net->parameters(), rate);
                  auto join = ddp.join({.divide_by_initial_size = initial});
                  for (int step = 0; step < batches_of(group.rank()); ++step) {
                    optimizer.zero_grad();
                    loss_of(ddp(rows_of(whole_batch(group.size(), step), group.rank()))).backward();
                    optimizer.step();
                  }
                  join.wait();
                  torch::optim::SGD reference_optimizer(reference->parameters(), rate);
                  for (int step = 0; step < batches_of(group.size() - 1); ++step) {
                    reference_optimizer.zero_grad();
                    torch::Tensor sum = torch::zeros({}, torch::kDouble);
                    int num_active = 0;
                    for (int rank = 0; rank < group.size(); ++rank) {
                      if (step < batches_of(rank)) {
                        ++num_active;
                        sum = sum +
                              loss_of(reference(rows_of(whole_batch(group.size(), step), rank)));
                      }
                    }
                    (sum / (initial ? group.size() : num_active)).backward();
                    reference_optimizer.step();
                  }
                  expect_close(net, reference);
                  expect_equal_on_all_ranks(group, net);
                  // And goes on as usual.
                  net->zero_grad();
                  loss_of(ddp(rows_of(whole_batch(group.size()), group.rank()))).backward();
                  EXPECT_TRUE(same_on_all_ranks(group, net->first->weight.grad()));
                },
                {.argument = by_initial_size ? "initial" : "live"});
    }
  }
}

TEST(Join, ARankWithoutAnyBatchAndOneThatRunsOutFirst) {
  run_ranks(3, [](Group& group) {
    Net net = make_net();
    DistributedDataParallel ddp(net, group, {.bucket_bytes = 300, .find_unused_parameters = true});
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    auto join = ddp.join();
    const int num_batches =
        group.rank() == 0 ? 0 : 4;  // rank 0: its order and buffers do not count
    for (int step = 0; step < num_batches; ++step) {
      optimizer.zero_grad();
      loss_of(ddp(rows_of(whole_batch(3, step), group.rank()), step % 2 == 0)).backward();
      optimizer.step();
    }
    join.wait();
    expect_equal_on_all_ranks(group, net);
  });
}

TEST(Join, EarlyTerminationIsThrownOnEveryRankIfAskedFor) {
  run_ranks(2, [](Group& group) {
    Net net = make_net();
    DistributedDataParallel ddp(net, group);
    auto join = ddp.join({.throw_on_early_termination = true});
    int steps = 0;
    try {
      for (int step = 0; step < batches_of(group.rank()); ++step) {
        net->zero_grad();
        loss_of(ddp(whole_batch(1))).backward();
        ++steps;
      }
      join.wait();
      ADD_FAILURE() << "nothing thrown";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 0 has run out of batches"));
    }
    EXPECT_EQ(steps, batches_of(0));
  });
}

TEST(Join, MisuseIsNamed) {
  DistributedDataParallel ddp(make_net(), make_single_group());
  const auto join = ddp.join();
  EXPECT_THROW((void)ddp.join(), UsageError);
  DistributedDataParallel sharded(make_net(), make_single_group(), {.shards = 2});
  EXPECT_THROW((void)sharded.join(), UsageError);
}

}  // namespace
}  // namespace lockstep

// What steps can be made of, on a device: unused parameters, accumulation, checkpointed parts,
// shards, the optimizer in backward, buffers, sparse gradients, ranks with fewer batches, other
// groups; and what is refused.

#include <gmock/gmock.h>

#include <lockstep/base/error.h>

#include "ddp/on_device.h"
#include "support/refusal.h"

namespace lockstep {
namespace {

using test::refusal;
using ::testing::HasSubstr;

class DdpModesOnDevice : public OnDevice {};
LOCKSTEP_ON_DEVICE(DdpModesOnDevice);

// ---- unused parameters ----

TEST_P(DdpModesOnDevice, UnusedParametersGetTheAverageWithZerosOrStayAsTheyWere) {
  run(3, [](Group& group, at::Device device) {
    Net net = make_net_on(device);
    DistributedDataParallel ddp(net, group, {.bucket_bytes = 300, .find_unused_parameters = true});
    const torch::Tensor x = batch_on(device, 1);
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      const int user = step % group.size();  // another rank in each step
      loss_of(ddp(x, group.rank() == user)).backward();
      Net reference = make_net_on(device);
      loss_of(reference(x, true)).backward();
      expect_close_tensors(net->spare->weight.grad(), reference->spare->weight.grad() / 3,
                           fmt::format("used by rank {} alone", user));
      EXPECT_TRUE(same_everywhere(group, net->spare->weight.grad()));
    }
    const torch::Tensor before = net->spare->weight.grad().clone();
    loss_of(ddp(x, false)).backward();
    EXPECT_TRUE(net->spare->weight.grad().equal(before)) << "used by nobody: bit for bit";
    net->zero_grad();
    loss_of(ddp(x, false)).backward();
    EXPECT_FALSE(net->spare->weight.grad().defined());
    {
      const auto guard = ddp.no_sync();
      loss_of(ddp(x, true)).backward();
    }
    loss_of(ddp(x, false)).backward();
    EXPECT_TRUE(net->spare->weight.grad().defined()) << "used under no_sync";
    EXPECT_TRUE(same_everywhere(group, net->spare->weight.grad()));
  });
}

TEST_P(DdpModesOnDevice, WithoutTheOptionEveryRankNamesParameterAndRank) {
  run(3, [](Group& group, at::Device device) {
    Net net = make_net_on(device);
    DistributedDataParallel ddp(net, group, {.bucket_bytes = 300});
    const auto step = [&](int skipping) {
      net->zero_grad();
      loss_of(ddp(batch_on(device, 1), group.rank() != skipping)).backward();
    };
    for (int before = 0; before < 2; ++before) {  // in the first step and in a later one
      EXPECT_THAT(refusal([&] { step(1); }),
                  HasSubstr("'spare.weight' of rank 1 got no gradient in step"));
      step(-1);  // and the ranks are still together
      EXPECT_TRUE(same_everywhere(group, net->spare->weight.grad()));
    }
  });
}

TEST_P(DdpModesOnDevice, AStaticGraphDoesNotWaitForWhatIsNeverReached) {
  run(2, [](Group& group, at::Device device) {
    Net net = make_net_on(device);
    DistributedDataParallel ddp(net, group, {.bucket_bytes = 300, .static_graph = true});
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      loss_of(ddp(rows_of(batch_on(device, 2), group.rank()), false)).backward();
      EXPECT_FALSE(net->spare->weight.grad().defined());
      EXPECT_TRUE(same_everywhere(group, net->first->weight.grad()));
    }
    EXPECT_THAT(refusal([&] { loss_of(ddp(batch_on(device, 1), group.rank() == 1)).backward(); }),
                HasSubstr("static_graph: parameter 'spare.weight' of rank 1"));
  });
}

// ---- several backwards ----

TEST_P(DdpModesOnDevice, NoSyncAccumulatesFromTheFirstStepOn) {
  for (const int world : {1, 2, 3}) {
    run(world, [](Group& group, at::Device device) {
      for (const bool set_to_none : {true, false}) {
        for (const bool is_static : {true, false}) {
          Net net = make_net_on(device);
          Net reference = make_net_on(device);
          DistributedDataParallel ddp(net, group, {.bucket_bytes = 300, .static_graph = is_static});
          torch::optim::SGD optimizer(net->parameters(), 0.1);
          torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
          for (int step = 0; step < 3; ++step) {
            optimizer.zero_grad(set_to_none);
            reference_optimizer.zero_grad();
            for (int micro = 0; micro < 3; ++micro) {
              const torch::Tensor batch = batch_on(device, group.size(), 3 * step + micro);
              std::optional<NoSync> guard;
              if (micro < 2) {
                guard.emplace(ddp.no_sync());
              }
              loss_of(ddp(rows_of(batch, group.rank()))).backward();
              loss_of(reference(batch)).backward();
            }
            optimizer.step();
            reference_optimizer.step();
          }
          expect_close_models(net, reference, is_static ? "static" : "dynamic");
          expect_same_everywhere(group, net);
        }
      }
    });
  }
}

TEST_P(DdpModesOnDevice, SeveralForwardsBeforeOneBackwardAndSeveralBackwards) {
  run(2, [](Group& group, at::Device device) {
    Net net = make_net_on(device);
    Net reference = make_net_on(device);
    DistributedDataParallel ddp(net, group, {.bucket_bytes = 300});
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      reference->zero_grad();
      const torch::Tensor a = batch_on(device, 2, 2 * step);
      const torch::Tensor b = batch_on(device, 2, 2 * step + 1);
      ddp(a);  // nobody looks at it
      (loss_of(ddp(rows_of(a, group.rank()))) + loss_of(ddp(rows_of(b, group.rank())))).backward();
      const auto again = loss_of(ddp(rows_of(a, group.rank())));
      again.backward({}, /*retain_graph=*/true);
      again.backward();
      (loss_of(reference(a)) * 3 + loss_of(reference(b))).backward();
      const auto expected = reference->named_parameters();
      for (const auto& item : net->named_parameters()) {
        expect_close_tensors(item.value().grad(), expected[item.key()].grad(),
                             fmt::format("{} in step {}", item.key(), step));
      }
    }
  });
}

// Runs `layer` without keeping its graph, and again in backward: gradient checkpointing.
struct Rerun : torch::autograd::Function<Rerun> {
  struct Holder : torch::CustomClassHolder {
    explicit Holder(torch::nn::Linear held) : layer(std::move(held)) {}
    torch::nn::Linear layer;
  };
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const c10::intrusive_ptr<Holder>& holder) {
    context->save_for_backward({x});
    context->saved_data["layer"] =
        c10::IValue::make_capsule(c10::intrusive_ptr<torch::CustomClassHolder>(holder));
    return holder->layer(x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const torch::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const torch::AutoGradMode with_grad(true);
    const auto holder =
        c10::static_intrusive_pointer_cast<Holder>(context->saved_data["layer"].toCapsule());
    holder->layer(x).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
};

struct RerunNetImpl : torch::nn::Module {
  RerunNetImpl() {
    torch::manual_seed(2);
    in = register_module("in", torch::nn::Linear(4, 8));
    middle = register_module("middle", torch::nn::Linear(8, 8));
    out = register_module("out", torch::nn::Linear(8, 1));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x, bool reruns = true) {
    auto y = in(x);
    for (int use = 0; use < 2; ++use) {
      y = torch::tanh(reruns ? Rerun::apply(y, c10::make_intrusive<Rerun::Holder>(middle))
                             : middle(y));
    }
    return out(y);
  }
  torch::nn::Linear in{nullptr};
  torch::nn::Linear middle{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(RerunNet);

TEST_P(DdpModesOnDevice, PartsMayBeRunAgainInBackward) {
  run(2, [](Group& group, at::Device device) {
    for (const bool is_static : {false, true}) {
      RerunNet net;
      net->to(device);
      DistributedDataParallel ddp(net, group, {.bucket_bytes = 1, .static_graph = is_static});
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        const torch::Tensor batch = batch_on(device, 2, step);
        loss_of(ddp(rows_of(batch, group.rank()))).backward();
        RerunNet reference;
        reference->to(device);
        loss_of(reference->forward(batch, false)).backward();
        const auto expected = reference->named_parameters();
        for (const auto& item : net->named_parameters()) {
          expect_close_tensors(item.value().grad(), expected[item.key()].grad(),
                               fmt::format("{} in step {}", item.key(), step));
        }
      }
    }
  });
}

// ---- shards, the optimizer in backward ----

std::vector<torch::Tensor> train_in_shards(Group& group, at::Device device, int shards) {
  Net net = make_net_on(device);
  net->to(torch::kFloat);
  DistributedDataParallel ddp(net, group, {.bucket_bytes = 300, .shards = shards});
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    const torch::Tensor batch = batch_on(device, shards, step).to(torch::kFloat);
    for (int i = 0; i < ddp.num_local_shards(); ++i) {
      loss_of(ddp(rows_of(batch, ddp.first_shard() + i))).backward();
    }
    optimizer.step();
  }
  expect_same_everywhere(group, net);
  return net->parameters();
}

TEST_P(DdpModesOnDevice, EightShardsGiveTheSameBitsOnAnyNumberOfRanks) {
  for (const int world : {2, 4}) {
    run(world, [](Group& group, at::Device device) {
      Group alone = make_single_group();
      const auto expected = train_in_shards(alone, device, 8);
      const auto found = train_in_shards(group, device, 8);
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(found[i].equal(expected[i])) << "parameter " << i;
      }
    });
  }
}

TEST_P(DdpModesOnDevice, TheOptimizerInBackwardGivesTheSameBits) {
  for (const int world : {1, 2, 3}) {
    run(world, [](Group& group, at::Device device) {
      for (const bool finds_unused : {false, true}) {
        const DdpOptions options{
            .bucket_bytes = 300, .first_bucket_bytes = 64, .find_unused_parameters = finds_unused};
        Net net = make_net_on(device);
        Net ordinary = make_net_on(device);
        DistributedDataParallel ddp(net, group, options);
        DistributedDataParallel ordinary_ddp(ordinary, group, options);
        torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
        torch::optim::AdamW ordinary_optimizer(ordinary->parameters(),
                                               torch::optim::AdamWOptions(0.01));
        ddp.step_in_backward(optimizer);
        for (int step = 0; step < 5; ++step) {
          const torch::Tensor rows = rows_of(batch_on(device, group.size(), step), group.rank());
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
        }
        expect_same_bits(net, ordinary);
      }
    });
  }
}

// ---- buffers, sparse gradients ----

TEST_P(DdpModesOnDevice, BuffersAreRankZerosOncePerStepAndKeepTheirVersions) {
  run(2, [](Group& group, at::Device device) {
    torch::manual_seed(1);
    auto net = torch::nn::Sequential(torch::nn::Conv2d(1, 4, 3), torch::nn::BatchNorm2d(4));
    net->to(device);
    DistributedDataParallel ddp(net, group);
    auto norm = net[1]->as<torch::nn::BatchNorm2d>();
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      if (group.rank() == 1) {
        const torch::NoGradGuard no_grad;
        norm->running_mean.fill_(100);
        norm->num_batches_tracked.fill_(77);
      }
      // Two forwards before a backward: the broadcast must not spoil what the first one saved.
      const auto real = ddp(torch::randn({2, 1, 5, 5}, device));
      EXPECT_LT(norm->running_mean.max().item<double>(), 50) << "rank 0's";
      EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 2 * step + 1);
      const auto fake = ddp(torch::randn({2, 1, 5, 5}, device));
      (real.sum() - fake.pow(2).sum()).backward();
      for (const auto& parameter : net->parameters()) {
        EXPECT_TRUE(same_everywhere(group, parameter.grad()));
      }
    }
  });
}

struct WordsImpl : torch::nn::Module {
  WordsImpl() {
    torch::manual_seed(4);
    words = register_module("words",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 3).sparse(true)));
    out = register_module("out", torch::nn::Linear(3, 1));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return ids.numel() == 0 ? out(torch::ones({1, 3}, ids.device())) : out(words(ids));
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Words);

TEST_P(DdpModesOnDevice, SparseRowsOfAllRanksAreAveragedAndARankMayHaveNone) {
  run(3, [](Group& group, at::Device device) {
    Words net;
    net->to(device);
    DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
    const std::vector<torch::Tensor> ids = {torch::tensor({1, 2, 2}, torch::kLong).to(device),
                                            torch::tensor({2, 9, 0}, torch::kLong).to(device),
                                            torch::empty({0}, torch::kLong).to(device)};
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      ddp(ids[static_cast<size_t>(group.rank())]).sum().backward();
      torch::Tensor expected = torch::zeros({10, 3}, device);
      for (const torch::Tensor& list : ids) {
        Words alone;
        alone->to(device);
        alone->forward(list).sum().backward();
        if (alone->words->weight.grad().defined()) {
          expected += alone->words->weight.grad().to_dense();
        }
      }
      ASSERT_TRUE(net->words->weight.grad().is_sparse());
      const torch::Tensor dense = net->words->weight.grad().to_dense();
      expect_close_tensors(dense, expected / 3, "rows", 1e-6);
      EXPECT_TRUE(same_everywhere(group, dense));
    }
    net->zero_grad();
    ddp(ids[2]).sum().backward();  // nobody has a row
    EXPECT_TRUE(same_everywhere(group, net->out->weight.grad()));
  });
}

// ---- uneven inputs, other groups ----

TEST_P(DdpModesOnDevice, RanksThatRunOutTakePartWithZerosAndEndWithTheLastModel) {
  run(3, [](Group& group, at::Device device) {
    const auto batches_of = [](int rank) { return 2 + 2 * rank; };
    for (const bool by_initial_size : {true, false}) {
      Net net = make_net_on(device);
      Net reference = make_net_on(device);
      DistributedDataParallel ddp(net, group, {.bucket_bytes = 300});
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
      auto join = ddp.join({.divide_by_initial_size = by_initial_size});
      for (int step = 0; step < batches_of(group.rank()); ++step) {
        optimizer.zero_grad();
        loss_of(ddp(rows_of(batch_on(device, 3, step), group.rank()))).backward();
        optimizer.step();
      }
      join.wait();
      for (int step = 0; step < batches_of(2); ++step) {
        reference_optimizer.zero_grad();
        torch::Tensor sum = torch::zeros({}, torch::dtype(torch::kDouble).device(device));
        int num_active = 0;
        for (int rank = 0; rank < 3; ++rank) {
          if (step < batches_of(rank)) {
            ++num_active;
            sum = sum + loss_of(reference(rows_of(batch_on(device, 3, step), rank)));
          }
        }
        (sum / (by_initial_size ? 3 : num_active)).backward();
        reference_optimizer.step();
      }
      expect_close_models(net, reference, by_initial_size ? "by initial size" : "by live ranks");
      expect_same_everywhere(group, net);
    }
  });
}

TEST_P(DdpModesOnDevice, GoesOnInANewGroupWithTheSameGradientMemory) {
  run(4, [](Group& group, at::Device device) {
    Net net = make_net_on(device);
    DistributedDataParallel ddp(net, group, {.bucket_bytes = 300});
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      loss_of(ddp(rows_of(batch_on(device, 4), group.rank()))).backward();
    }
    const void* place = net->first->weight.grad().const_data_ptr();
    Group half = group.split(group.rank() / 2);
    ddp.rebind(half);
    net->zero_grad();
    loss_of(ddp(rows_of(batch_on(device, 2), half.rank()))).backward();
    EXPECT_EQ(net->first->weight.grad().const_data_ptr(), place);
    Net reference = make_net_on(device);
    loss_of(reference(batch_on(device, 2))).backward();
    expect_close_tensors(net->first->weight.grad(), reference->first->weight.grad(), "in halves");
  });
}

// ---- what is refused ----

TEST_P(DdpModesOnDevice, WhatIsNotSupportedIsRefused) {
  run(2, [](Group& group, at::Device device) {
    Net net = make_net_on(device);
    DistributedDataParallel ddp(net, group);
    EXPECT_THAT(refusal([&] {
                  loss_of(ddp(batch_on(device, 1)))
                      .backward({}, /*retain_graph=*/true, /*create_graph=*/true);
                }),
                HasSubstr("create_graph"));
    Net direct = make_net_on(device);
    DistributedDataParallel direct_ddp(direct, group);
    EXPECT_THAT(refusal([&] { loss_of(direct(batch_on(device, 1))).backward(); }),
                HasSubstr("write ddp(input) instead of model(input)"));
    group.barrier();
  });
}

}  // namespace
}  // namespace lockstep

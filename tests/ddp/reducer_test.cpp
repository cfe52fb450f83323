// DistributedDataParallel against the same model on one process with the whole batch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/ddp/distributed_data_parallel.h>

#include "support/fleet.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using testing_support::die_now;
using testing_support::run_ranks;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(4, 16));
    second = register_module("second", torch::nn::Linear(16, 2));
    spare = register_module("spare", torch::nn::Linear(4, 2));
    scale = register_buffer("scale", torch::ones({1}));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x, bool use_spare = false) {
    auto y = second(torch::relu(first(x))) * scale;
    return use_spare ? y + spare(x) : y;
  }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  torch::nn::Linear spare{nullptr};
  torch::Tensor scale;
};
TORCH_MODULE(Net);

Net make_net(uint64_t seed) {
  torch::manual_seed(seed);
  return Net();
}

torch::Tensor whole_batch(int size) {
  return torch::arange(size * 3 * 4, torch::kDouble).view({size * 3, 4}).sin();
}

torch::Tensor rows_of(const torch::Tensor& batch, int rank) {
  return batch.narrow(0, rank * 3, 3);
}

torch::Tensor loss_of(const torch::Tensor& output) {
  return output.pow(2).mean();
}

bool same_on_all_ranks(Group& group, const torch::Tensor& tensor) {
  torch::Tensor all =
      torch::empty({group.size(), tensor.numel()}, tensor.options().requires_grad(false));
  group.all_gather(all, tensor.detach().reshape({-1}).contiguous());
  for (int rank = 1; rank < group.size(); ++rank) {
    if (!all[rank].equal(all[0])) {
      return false;
    }
  }
  return true;
}

TEST(Ddp, StartsFromTheWeightsAndBuffersOfRankZero) {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [](Group& group) {
      Net net = make_net(static_cast<uint64_t>(group.rank()));
      net->scale.fill_(group.rank() + 1);
      const DistributedDataParallel ddp(net, group);
      const Net reference = make_net(0);
      for (size_t i = 0; i < net->parameters().size(); ++i) {
        EXPECT_TRUE(net->parameters()[i].equal(reference->parameters()[i]));
      }
      EXPECT_EQ(net->scale.item<double>(), 1);
    });
  }
}

TEST(Ddp, TrainsAsOneProcessWithTheWholeBatch) {
  for (const int world : {1, 2, 3, 4}) {
    run_ranks(world, [](Group& group) {
      Net net = make_net(1);
      Net reference = make_net(1);
      DistributedDataParallel ddp(net, group, {.bucket_bytes = 300});  // several buckets
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
      const torch::Tensor batch = whole_batch(group.size());
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        loss_of(ddp(rows_of(batch, group.rank()), true)).backward();
        optimizer.step();
        reference_optimizer.zero_grad();
        loss_of(reference(batch, true)).backward();
        reference_optimizer.step();
      }
      for (size_t i = 0; i < net->parameters().size(); ++i) {
        const torch::Tensor parameter = net->parameters()[i];
        EXPECT_TRUE(parameter.allclose(reference->parameters()[i], 1e-9, 1e-12))
            << "parameter " << i;
        EXPECT_TRUE(same_on_all_ranks(group, parameter)) << "parameter " << i;
      }
    });
  }
}

TEST(Ddp, AParameterThatOneRankDoesNotReachCountsAsZeroThere) {
  run_ranks(2, [](Group& group) {
    Net net = make_net(1);
    DistributedDataParallel ddp(net, group);
    const torch::Tensor x = whole_batch(1);
    loss_of(ddp(x, group.rank() == 0)).backward();
    Net reference = make_net(1);
    loss_of(reference(x, true)).backward();
    EXPECT_TRUE(
        net->spare->weight.grad().allclose(reference->spare->weight.grad() / 2, 1e-9, 1e-12));
    EXPECT_TRUE(same_on_all_ranks(group, net->spare->weight.grad()));
  });
}

TEST(Ddp, GradientsThatAreNotZeroedAccumulateOnAllRanksAlike) {
  run_ranks(2, [](Group& group) {
    Net net = make_net(1);
    DistributedDataParallel ddp(net, group);
    loss_of(ddp(rows_of(whole_batch(2), group.rank()))).backward();
    const torch::Tensor once = net->first->weight.grad().clone();
    loss_of(ddp(rows_of(whole_batch(2), group.rank()))).backward();
    EXPECT_TRUE(net->first->weight.grad().allclose(once * 2, 1e-9, 1e-12));
  });
}

TEST(Ddp, AnotherModelOnOneRankIsNamedOnAll) {
  run_ranks(3, [](Group& group) {
    auto model = std::make_shared<torch::nn::LinearImpl>(4, group.rank() == 2 ? 3 : 2);
    try {
      const DistributedDataParallel ddp(model, group);
      ADD_FAILURE() << "accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("rank 0 has weight: Float [2, 4], rank 2 has weight: Float [3, 4]"));
    }
    group.barrier();  // and the group still works
  });
}

TEST(Ddp, ARankThatDiesInBackwardIsAnErrorOnTheOthers) {
  run_ranks(3,
            [](Group& group) {
              Net net = make_net(1);
              DistributedDataParallel ddp(net, group);
              const torch::Tensor loss = loss_of(ddp(rows_of(whole_batch(3), group.rank())));
              Store store = group.store();
              if (group.rank() == 1) {
                store.get("others are in backward");
                die_now();
              }
              if (store.add("ready for backward", 1) == 2) {
                store.set("others are in backward", "1");
              }
              EXPECT_THROW(loss.backward(), PeerLostError);
            },
            {.dies = {1}});
}

TEST(Ddp, MisuseIsNamed) {
  auto frozen = std::make_shared<torch::nn::LinearImpl>(2, 2);
  for (auto& parameter : frozen->parameters()) {
    parameter.set_requires_grad(false);
  }
  EXPECT_THROW(DistributedDataParallel(frozen, make_single_group()), UsageError);
  EXPECT_THROW(DistributedDataParallel(make_net(1), make_single_group(), {.bucket_bytes = 0}),
               UsageError);
}

}  // namespace
}  // namespace lockstep

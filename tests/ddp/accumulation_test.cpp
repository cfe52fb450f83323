// Several backwards for one step, several forwards for one backward.

#include <gmock/gmock.h>

#include <lockstep/base/error.h>

#include "ddp/nets.h"

namespace lockstep {
namespace {

using testing_support::run_ranks;

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
void accumulate(Group& group, DdpOptions options, bool whole_inside, bool set_to_none,
                int64_t width = kSmallWidth) {
  constexpr int kMicroBatches = 4;
  Net net = make_net(1, width);
  Net reference = make_net(1, width);
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
        accumulate(group, {}, whole_inside, true, kLargeWidth);
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

}  // namespace
}  // namespace lockstep

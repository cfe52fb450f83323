// The built-in hooks under DistributedDataParallel: buckets that are laid out anew, training, new
// groups.

#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/ddp/compress_hooks.h>
#include <lockstep/ddp/local_sgd.h>
#include <lockstep/ddp/power_sgd.h>

#include "ddp/nets.h"

namespace lockstep {
namespace {

using testing_support::run_ranks;
using Ddp = DistributedDataParallel<Net>;

constexpr int64_t kBucketBytes = 300;  // several buckets

// Steps of SGD on this rank's rows; the loss of the last one.
double train(Ddp& ddp, Group& group, int begin, int end) {
  torch::optim::SGD optimizer(ddp.module()->parameters(), 0.1);
  double loss = 0;
  for (int step = begin; step < end; ++step) {
    optimizer.zero_grad();
    const torch::Tensor value =
        loss_of(ddp(rows_of(whole_batch(group.size(), step % 3), group.rank())) - 1);
    value.backward();
    optimizer.step();
    loss = value.item<double>();
  }
  return loss;
}

TEST(HooksInDdp, ASmallTypeTrainsNearlyAsTheWholeOne) {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [](Group& group) {
      for (const auto make : {fp16_compress, bf16_compress}) {
        Net net = make_net();
        Net exact = make_net();
        Ddp ddp(net, group, {.bucket_bytes = kBucketBytes, .comm_hook = make()});
        Ddp reference(exact, group, {.bucket_bytes = kBucketBytes});
        train(ddp, group, 0, 6);
        train(reference, group, 0, 6);
        ddp.verify();
        EXPECT_EQ(net->first->weight.equal(exact->first->weight), group.size() == 1);
        EXPECT_TRUE(net->first->weight.allclose(exact->first->weight, 0, 5e-3));
      }
    });
  }
}

TEST(HooksInDdp, PowerSgdOfFullRankTrainsAsNoHook) {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [](Group& group) {
      Net net = make_net();
      Net exact = make_net();
      Ddp ddp(net, group,
              {.bucket_bytes = kBucketBytes,
               .comm_hook = power_sgd({.rank = 100, .start_step = 2, .min_compression_rate = 0})});
      Ddp reference(exact, group, {.bucket_bytes = kBucketBytes});
      train(ddp, group, 0, 8);
      train(reference, group, 0, 8);
      ddp.verify();
      expect_close(net, exact);
    });
  }
}

TEST(HooksInDdp, PowerSgdOfRankOneLearnsAsWell) {
  run_ranks(3, [](Group& group) {
    Net net = make_net();
    Net exact = make_net();
    Ddp ddp(net, group,
            {.bucket_bytes = kBucketBytes,
             .comm_hook = power_sgd({.start_step = 2, .min_compression_rate = 1})});
    Ddp reference(exact, group, {.bucket_bytes = kBucketBytes});
    const double first = train(ddp, group, 0, 1);
    const double loss = train(ddp, group, 1, 150);
    train(reference, group, 0, 1);
    const double exact_loss = train(reference, group, 1, 150);
    ddp.verify();
    EXPECT_FALSE(net->first->weight.equal(exact->first->weight)) << "it was compressed";
    EXPECT_LT(loss, first / 4);
    EXPECT_LT(loss, exact_loss * 1.5 + 0.01);
  });
}

// A gradient that is a bucket of its own, wherever autograd wrote it.
TEST(HooksInDdp, WorkWhereALargeGradientLies) {
  run_ranks(2, [](Group& group) {
    const auto gradient = [&](const std::shared_ptr<CommHook>& hook) {
      torch::manual_seed(3);
      torch::nn::Linear layer(512, 300);
      layer->to(torch::kDouble);
      DistributedDataParallel<torch::nn::Linear> ddp(layer, group, {.comm_hook = hook});
      const torch::Tensor x = rows_of(whole_batch(group.size()), group.rank()).repeat({1, 128});
      for (int step = 0; step < 5; ++step) {
        layer->zero_grad();
        loss_of(ddp(x + step)).backward();
      }
      EXPECT_TRUE(same_on_all_ranks(group, layer->weight.grad()));
      return layer->weight.grad().clone();
    };
    const torch::Tensor average = gradient(nullptr);
    const double scale = average.abs().max().item<double>();
    EXPECT_TRUE(gradient(bf16_compress()).allclose(average, 0, 0.02 * scale));
    // Four different columns in x: rank 8 is more than all of it, whatever the ranks hold.
    EXPECT_TRUE(
        gradient(power_sgd({.rank = 8, .start_step = 2})).allclose(average, 0, 1e-9 * scale));
  });
}

TEST(HooksInDdp, GoOnInANewGroup) {
  run_ranks(4, [](Group& group) {
    for (const auto& hook :
         {bf16_compress(), power_sgd({.start_step = 2}), local_sgd({.start_step = 1000})}) {
      Net net = make_net();
      Ddp ddp(net, group, {.bucket_bytes = kBucketBytes, .comm_hook = hook});
      train(ddp, group, 0, 4);
      Group half = group.split(group.rank() / 2);
      ddp.rebind(half);
      train(ddp, half, 4, 7);
      ddp.verify();
      Group alone = group.split(-1);
      ddp.rebind(alone);
      train(ddp, alone, 7, 9);
    }
  });
}

TEST(HooksInDdp, LocalSgdPartsTheModelsAndTheAveragerJoinsThem) {
  run_ranks(3, [](Group& group) {
    Net net = make_net();
    Ddp ddp(net, group, {.bucket_bytes = kBucketBytes, .comm_hook = local_sgd({.start_step = 3})});
    PeriodicModelAverager averager(group, {.period = 4, .warmup_steps = 3});
    for (int step = 0; step < 12; ++step) {
      train(ddp, group, step, step + 1);
      const bool is_averaged = averager.average(*net);
      EXPECT_EQ(is_averaged, step == 3 || step == 7 || step == 11);
      EXPECT_EQ(same_on_all_ranks(group, net->first->weight), step < 3 || is_averaged)
          << "step " << step;
      if (step == 5) {
        EXPECT_THROW(ddp.verify(), DesyncError);
      }
    }
  });
}

}  // namespace
}  // namespace lockstep

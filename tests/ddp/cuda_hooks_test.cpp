// Communication hooks on a device: small types, PowerSGD, local SGD.

#include <gmock/gmock.h>

#include <lockstep/base/error.h>
#include <lockstep/ddp/compress_hooks.h>
#include <lockstep/ddp/local_sgd.h>
#include <lockstep/ddp/power_sgd.h>

#include "ddp/device/device_low_rank.h"
#include "ddp/low_rank.h"
#include "ddp/on_device.h"
#include "support/refusal.h"

namespace lockstep {
namespace {

using test::refusal;
using ::testing::HasSubstr;
using Ddp = DistributedDataParallel<Net>;

class HooksOnDevice : public OnDevice {};
LOCKSTEP_ON_DEVICE(HooksOnDevice);

constexpr int64_t kBucketBytes = 300;  // several buckets

// Steps of SGD on this rank's rows; the loss of the last one.
double train(Ddp& ddp, Group& group, at::Device device, int begin, int end) {
  torch::optim::SGD optimizer(ddp.module()->parameters(), 0.1);
  double loss = 0;
  for (int step = begin; step < end; ++step) {
    optimizer.zero_grad();
    const torch::Tensor value =
        loss_of(ddp(rows_of(batch_on(device, group.size(), step % 3), group.rank())) - 1);
    value.backward();
    optimizer.step();
    loss = value.item<double>();
  }
  return loss;
}

TEST_P(HooksOnDevice, ASmallTypeTrainsNearlyAsTheWholeOne) {
  for (const int world : {1, 2, 3}) {
    run(world, [](Group& group, at::Device device) {
      for (const auto make : {fp16_compress, bf16_compress}) {
        Net net = make_net_on(device);
        Net exact = make_net_on(device);
        Ddp ddp(net, group, {.bucket_bytes = kBucketBytes, .comm_hook = make()});
        Ddp reference(exact, group, {.bucket_bytes = kBucketBytes});
        train(ddp, group, device, 0, 6);
        train(reference, group, device, 0, 6);
        ddp.verify();
        EXPECT_EQ(net->first->weight.equal(exact->first->weight), group.size() == 1);
        expect_close_tensors(net->first->weight, exact->first->weight, "small type", 5e-3);
      }
    });
  }
}

TEST_P(HooksOnDevice, TheAverageIsRoundedToTheSmallType) {
  run(2, [](Group& group, at::Device device) {
    for (const auto& [make, type] :
         {std::pair{&fp16_compress, at::kHalf}, std::pair{&bf16_compress, at::kBFloat16}}) {
      torch::nn::Linear layer(torch::nn::LinearOptions(33, 1).bias(false));
      layer->to(device);
      DistributedDataParallel ddp(layer, group, {.comm_hook = make()});
      const auto input = [&](int rank) { return torch::linspace(-3, 3 + rank, 33); };
      ddp(input(group.rank()).to(device).unsqueeze(0)).sum().backward();
      const torch::Tensor expected = ((input(0) / 2).to(type) + (input(1) / 2).to(type));
      EXPECT_TRUE(layer->weight.grad()[0].cpu().equal(expected.to(torch::kFloat)))
          << at::toString(type);
    }
  });
}

TEST_P(HooksOnDevice, PowerSgdOfFullRankTrainsAsNoHook) {
  for (const int world : {1, 2, 3}) {
    run(world, [](Group& group, at::Device device) {
      for (const bool warm_start : {true, false}) {
        Net net = make_net_on(device);
        Net exact = make_net_on(device);
        const auto hook = power_sgd(
            {.rank = 100, .start_step = 2, .warm_start = warm_start, .min_compression_rate = 0});
        Ddp ddp(net, group, {.bucket_bytes = kBucketBytes, .comm_hook = hook});
        Ddp reference(exact, group, {.bucket_bytes = kBucketBytes});
        train(ddp, group, device, 0, 8);
        train(reference, group, device, 0, 8);
        ddp.verify();
        expect_close_models(net, exact, "full rank", 1e-8);
      }
    });
  }
}

TEST_P(HooksOnDevice, PowerSgdOfRankOneLearnsAsWell) {
  run(3, [](Group& group, at::Device device) {
    Net net = make_net_on(device);
    Net exact = make_net_on(device);
    Ddp ddp(net, group,
            {.bucket_bytes = kBucketBytes,
             .comm_hook = power_sgd({.start_step = 2, .min_compression_rate = 1})});
    Ddp reference(exact, group, {.bucket_bytes = kBucketBytes});
    const double first = train(ddp, group, device, 0, 1);
    const double loss = train(ddp, group, device, 1, 100);
    train(reference, group, device, 0, 1);
    const double exact_loss = train(reference, group, device, 1, 100);
    ddp.verify();
    EXPECT_FALSE(net->first->weight.equal(exact->first->weight)) << "it was compressed";
    EXPECT_LT(loss, first / 4);
    EXPECT_LT(loss, exact_loss * 1.5 + 0.01);
  });
}

TEST_P(HooksOnDevice, PowerSgdMakesNoNanOfZerosAndForgetsWhatIsNotFinite) {
  run(2, [](Group& group, at::Device device) {
    torch::nn::Linear layer(torch::nn::LinearOptions(12, 10).bias(false));
    layer->to(device);
    DistributedDataParallel ddp(layer, group,
                                {.comm_hook = power_sgd({.rank = 2, .start_step = 2})});
    const auto gradient = [&](double scale) {
      layer->zero_grad();
      torch::manual_seed(11);
      (ddp(torch::randn({5, 12}).to(device)) * scale).pow(2).sum().backward();
      EXPECT_TRUE(same_everywhere(group, layer->weight.grad()));
      return layer->weight.grad().clone();
    };
    gradient(1);
    gradient(1);
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(gradient(0).count_nonzero().item<int64_t>(), 0);
    }
    EXPECT_TRUE(gradient(1).isfinite().all().item<bool>());
    EXPECT_FALSE(gradient(std::numeric_limits<double>::infinity()).isfinite().all().item<bool>());
    for (int step = 0; step < 2; ++step) {
      EXPECT_TRUE(gradient(1).isfinite().all().item<bool>()) << "forgotten";
    }
  });
}

// What the device does beside what the host does.
TEST_P(HooksOnDevice, LowRankArithmeticIsThatOfTheHost) {
  run(1, [](Group&, at::Device device) {
    torch::manual_seed(5);
    for (const auto type : {at::kFloat, at::kDouble}) {
      const double tolerance = type == at::kFloat ? 1e-5 : 1e-12;
      at::Tensor rows = torch::randn({4, 50}, type);
      rows[2] = rows[0] * 2 - rows[1];                      // depends on others
      rows[3] = rows[0] + 1e-3 * torch::randn({50}, type);  // nearly
      const at::Tensor there = rows.to(device, /*non_blocking=*/false, /*copy=*/true);
      EXPECT_TRUE(ddp::orthonormalize_rows(rows, 0));
      EXPECT_TRUE(ddp::queue_orthonormalize_rows(there, 0).item<bool>());
      // A dependent row is noise on both: zero, or what rounding left of it.
      const at::Tensor products = there.to(at::kDouble).mm(there.to(at::kDouble).t());
      for (int64_t k : {0, 1, 3}) {
        EXPECT_NEAR(products[k][k].item<double>(), 1, tolerance) << "row " << k;
      }
      EXPECT_NEAR(products[0][1].item<double>(), 0, tolerance);
      EXPECT_NEAR(products[0][3].item<double>(), 0, 10 * tolerance);
      expect_close_tensors(there.narrow(0, 0, 2), rows.narrow(0, 0, 2), "rows", tolerance);

      const at::Tensor p = torch::randn({3, 20}, type), q = torch::randn({3, 30}, type);
      const at::Tensor matrix = torch::randn({20, 30}, type);
      const at::Tensor error = torch::zeros({20, 30}, type);
      const at::Tensor matrix_there = matrix.to(device, false, true);
      const at::Tensor error_there = error.to(device, false, true);
      ddp::replace_by_product(matrix, error, p, q);
      const at::Tensor yes = torch::ones({}, torch::dtype(torch::kBool).device(device));
      ddp::queue_replace_by_product(matrix_there, error_there, p.to(device), q.to(device), yes);
      expect_close_tensors(matrix_there, matrix, "product", tolerance);
      expect_close_tensors(error_there, error, "error", tolerance);
      ddp::queue_replace_by_product(matrix_there, error_there, p.to(device), q.to(device),
                                    yes.logical_not());
      EXPECT_EQ(error_there.count_nonzero().item<int64_t>(), 0);

      const at::Tensor holes = torch::randn({3, 7}, type).to(device);
      const at::Tensor spare = torch::randn({3, 7}, type).to(device);
      const at::Tensor before = holes.clone();
      holes[0].zero_();
      holes[2][3] = std::numeric_limits<double>::quiet_NaN();
      ddp::queue_fill_empty_rows(holes, spare);
      EXPECT_TRUE(holes[0].equal(spare[0]));
      EXPECT_TRUE(holes[1].equal(before[1]));
      EXPECT_TRUE(holes[2].equal(spare[2]));
    }
    at::Tensor bad = torch::ones({2, 4}).to(device);
    bad[1][1] = std::numeric_limits<double>::infinity();
    EXPECT_FALSE(ddp::queue_orthonormalize_rows(bad, 0).item<bool>());
  });
}

TEST_P(HooksOnDevice, LocalSgdPartsTheModelsAndTheAveragerJoinsThem) {
  run(3, [](Group& group, at::Device device) {
    Net net = make_net_on(device);
    Ddp ddp(net, group, {.bucket_bytes = kBucketBytes, .comm_hook = local_sgd({.start_step = 3})});
    PeriodicModelAverager averager(group, {.period = 4, .warmup_steps = 3});
    for (int step = 0; step < 12; ++step) {
      train(ddp, group, device, step, step + 1);
      const std::vector<torch::Tensor> own = net->parameters();
      torch::Tensor mean = net->first->weight.detach().cpu();
      const bool is_averaged = averager.average(*net);
      EXPECT_EQ(is_averaged, step == 3 || step == 7 || step == 11);
      if (is_averaged) {
        group.all_reduce(mean, {.op = ReduceOp::Average});
        expect_close_tensors(net->first->weight.cpu(), mean, "the models' average");
      }
      EXPECT_EQ(same_everywhere(group, net->first->weight), step < 3 || is_averaged)
          << "step " << step;
    }
    if (!device.is_cpu()) {
      EXPECT_THAT(refusal([&] {
                    averager.average({net->first->weight, torch::ones({2}).requires_grad_()});
                  }),
                  HasSubstr("parameter 1 is on cpu and parameter 0 on cuda:0"));
    }
  });
}

TEST_P(HooksOnDevice, AHookCanBeChangedBetweenStepsAndGoesOnInANewGroup) {
  run(4, [](Group& group, at::Device device) {
    for (const auto& hook :
         {bf16_compress(), power_sgd({.start_step = 2}), local_sgd({.start_step = 1000})}) {
      Net net = make_net_on(device);
      Ddp ddp(net, group, {.bucket_bytes = kBucketBytes});
      train(ddp, group, device, 0, 2);
      ddp.set_comm_hook(hook);
      train(ddp, group, device, 2, 6);
      Group half = group.split(group.rank() / 2);
      ddp.rebind(half);
      train(ddp, half, device, 6, 9);
      ddp.verify();
    }
  });
}

}  // namespace
}  // namespace lockstep

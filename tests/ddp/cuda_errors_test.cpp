// What must not depend on where tensors are, shown there: what is left out by name, the times of a
// step, and an error in one rank's forward.

#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include <lockstep/base/error.h>

#include "ddp/on_device.h"
#include "support/refusal.h"

namespace lockstep {
namespace {

using test::refusal;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class DdpErrorsOnDevice : public OnDevice {};
LOCKSTEP_ON_DEVICE(DdpErrorsOnDevice);

TEST_P(DdpErrorsOnDevice, IgnoredParametersAndBuffersStayEachRanksOwn) {
  run(2, [](Group& group, at::Device device) {
    const auto seed = static_cast<uint64_t>(group.rank());
    Net net = make_net_on(device, seed), before = make_net_on(device, seed);
    net->scale.fill_(group.rank() + 1);
    DistributedDataParallel ddp(net, group, {.ignored = {"spare.weight", "scale"}});
    EXPECT_TRUE(net->spare->weight.equal(before->spare->weight));
    EXPECT_FALSE(same_everywhere(group, net->spare->weight));
    EXPECT_TRUE(same_everywhere(group, net->spare->bias));
    EXPECT_EQ(net->scale.item<double>(), group.rank() + 1);
    loss_of(ddp(rows_of(batch_on(device, 2), group.rank()))).backward();
    EXPECT_FALSE(same_everywhere(group, net->spare->weight.grad()));
    EXPECT_TRUE(same_everywhere(group, net->spare->bias.grad()));
    EXPECT_EQ(net->scale.item<double>(), group.rank() + 1);
    EXPECT_THROW(DistributedDataParallel(net, group, {.ignored = {"spar"}}), UsageError);
    // Lists that differ are found before anything waits.
    const std::vector<std::string> own =
        group.rank() == 0 ? std::vector<std::string>{"spare.weight"} : std::vector<std::string>{};
    EXPECT_THAT(refusal([&] { DistributedDataParallel(net, group, {.ignored = own}); }),
                HasSubstr("spare.weight"));
    group.barrier();
  });
}

// By the host's clock; the host may be ahead of the device.
TEST_P(DdpErrorsOnDevice, TimesOfTheLastStepAreMeasured) {
  run(2, [](Group& group, at::Device device) {
    Net net = make_net_on(device);
    DistributedDataParallel ddp(net, group);
    for (int64_t step = 1; step <= 3; ++step) {
      net->zero_grad();
      loss_of(ddp(batch_on(device, 1))).backward();
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

// Be it the task's own, or that the device has no memory left: in the third step, with the sums of
// the second behind it.
TEST_P(DdpErrorsOnDevice, AnExceptionInOneRanksForwardIsToldToTheOthers) {
  run(3, [](Group& group, at::Device device) {
    enum class Fault { None, Picture, Memory };
    struct Fragile : torch::nn::Module {
      Fragile() { layer = register_module("layer", torch::nn::Linear(4, 1)); }
      torch::Tensor forward(const torch::Tensor& x, Fault fault) {
        if (fault == Fault::Picture) {
          throw std::runtime_error("bad picture");
        }
        if (fault == Fault::Memory) {
          throw c10::OutOfMemoryError({"", "", 0}, "CUDA out of memory. Tried to allocate");
        }
        return layer(x);
      }
      torch::nn::Linear layer{nullptr};
    };
    for (const Fault fault : {Fault::Picture, Fault::Memory}) {
      const char* const name = fault == Fault::Picture ? "picture" : "memory";
      const auto train = [&] {
        const Group own =
            make_group(group.store(), {.name = name, .rank = group.rank(), .size = group.size()});
        auto net = std::make_shared<Fragile>();
        net->to(device);
        DistributedDataParallel ddp(net, own);
        for (int step = 0; step < 3; ++step) {
          net->zero_grad();
          const Fault now = group.rank() == 1 && step == 2 ? fault : Fault::None;
          ddp(torch::ones({1, 4}, device), now).sum().backward();
        }
      };
      if (group.rank() != 1) {
        EXPECT_THAT(train, ThrowsMessage<CommError>(HasSubstr("rank 1"))) << name;
      } else if (fault == Fault::Picture) {
        EXPECT_THAT(train, ThrowsMessage<std::runtime_error>(HasSubstr("bad picture")));
      } else {
        EXPECT_THROW(train(), c10::OutOfMemoryError);
      }
    }
    group.barrier();
  });
}

}  // namespace
}  // namespace lockstep

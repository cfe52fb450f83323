// A step on a device against the same model on one process with the whole batch: buckets, layouts,
// parameters of every kind, streams, clipping, verification.

#include <set>

#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>

#include <lockstep/base/error.h>

#include "ddp/on_device.h"
#include "support/refusal.h"

namespace lockstep {
namespace {

using test::refusal;
using ::testing::HasSubstr;

class DdpOnDevice : public OnDevice {};
LOCKSTEP_ON_DEVICE(DdpOnDevice);

struct Trained {
  Net net;
  Net reference;
};

Trained train_beside_one_process(Group& group, at::Device device, DdpOptions options,
                                 bool set_to_none = true, int64_t width = kSmallWidth) {
  Trained trained{make_net_on(device, 1, width), make_net_on(device, 1, width)};
  DistributedDataParallel ddp(trained.net, group, std::move(options));
  const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
  torch::optim::SGD optimizer(trained.net->parameters(), sgd);
  torch::optim::SGD reference_optimizer(trained.reference->parameters(), sgd);
  for (int step = 0; step < 6; ++step) {
    const torch::Tensor batch = batch_on(device, group.size(), step);
    optimizer.zero_grad(set_to_none);
    loss_of(ddp(rows_of(batch, group.rank()))).backward();
    optimizer.step();
    reference_optimizer.zero_grad();
    loss_of(trained.reference(batch)).backward();
    reference_optimizer.step();
  }
  expect_close_models(
      trained.net, trained.reference,
      fmt::format("{} ranks, zero_grad({}), width {}", group.size(), set_to_none, width));
  expect_same_everywhere(group, trained.net);
  return trained;
}

TEST_P(DdpOnDevice, TrainsAsOneProcessWithTheWholeBatchWhateverTheBuckets) {
  for (const int world : {1, 2, 3}) {
    run(world, [](Group& group, at::Device device) {
      train_beside_one_process(group, device, {});
      train_beside_one_process(group, device, {.bucket_bytes = 300, .first_bucket_bytes = 64});
      train_beside_one_process(group, device, {.bucket_bytes = 1, .first_bucket_bytes = 1});
      train_beside_one_process(group, device, {.bucket_bytes = kAutoBucketBytes});
      train_beside_one_process(group, device, {.bucket_bytes = 300, .overlap = Overlap::Never});
      train_beside_one_process(group, device, {.static_graph = true});
      train_beside_one_process(group, device, {.find_unused_parameters = true});
      train_beside_one_process(group, device, {.bucket_bytes = 300}, /*set_to_none=*/false);
      train_beside_one_process(group, device, {}, true, kLargeWidth);
    });
  }
}

// The sums have the same order, so the path makes no difference to the bits.
TEST(DevicePathOnCpu, GivesTheBitsOfTheOrdinaryPath) {
  testing_support::run_ranks(3, [](Group& group) {
    const at::Device cpu(at::kCPU);
    for (const int64_t width : {kSmallWidth, kLargeWidth}) {
      Net ordinary = train_beside_one_process(group, cpu, {.bucket_bytes = 300}, true, width).net;
      const ddp::DevicePathOnCpu path;
      Net net = train_beside_one_process(group, cpu, {.bucket_bytes = 300}, true, width).net;
      expect_same_bits(net, ordinary);
    }
  });
}

TEST_P(DdpOnDevice, StartsFromTheWeightsAndBuffersOfRankZero) {
  run(3, [](Group& group, at::Device device) {
    const auto own_seed = static_cast<uint64_t>(group.rank());
    Net net = make_net_on(device, own_seed);
    net->scale.fill_(group.rank() + 1);
    // A buffer on the CPU of a model that is on a device.
    torch::Tensor flags = net->register_buffer("flags", torch::full({3}, group.rank() == 1));
    torch::Tensor turned =
        net->register_buffer("turned", torch::full({4, 2}, group.rank(), device).t());
    const DistributedDataParallel ddp(net, group);
    Net first = make_net_on(device, 0);
    for (const auto& item : first->named_parameters()) {
      EXPECT_TRUE(net->named_parameters()[item.key()].equal(item.value())) << item.key();
    }
    EXPECT_EQ(net->scale.item<double>(), 1);
    EXPECT_FALSE(flags.any().item<bool>());
    EXPECT_TRUE(turned.eq(0).all().item<bool>());

    Net own = make_net_on(device, own_seed);
    const DistributedDataParallel without(own, group, {.init_sync = false});
    EXPECT_TRUE(own->first->weight.equal(make_net_on(device, own_seed)->first->weight));
  });
}

TEST_P(DdpOnDevice, GradientsAreViewsOfBucketsOnTheDeviceAndStayThere) {
  run(2, [](Group& group, at::Device device) {
    for (const int64_t width : {kSmallWidth, kLargeWidth}) {
      Net net = make_net_on(device, 1, width);
      DistributedDataParallel ddp(net, group, {.bucket_bytes = 300, .first_bucket_bytes = 64});
      std::vector<const void*> places;
      for (int step = 0; step < 4; ++step) {
        net->zero_grad(step % 2 == 0);
        loss_of(ddp(rows_of(batch_on(device, 2), group.rank()))).backward();
        std::vector<const void*> now;
        for (const auto& parameter : net->parameters()) {
          EXPECT_EQ(parameter.grad().device(), device);
          now.push_back(parameter.grad().const_data_ptr());
        }
        if (step >= 2) {  // the second step has laid the buckets out anew
          EXPECT_EQ(now, places);
        }
        places = now;
      }
      EXPECT_GE(ddp.bucket_sizes_bytes().size(), 3u);
    }
  });
}

TEST_P(DdpOnDevice, BucketsAreLaidOutInTheOrderInWhichRankZeroGetsGradients) {
  run(2, [](Group& group, at::Device device) {
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
    net->to(device);
    std::vector<std::string> sent;
    auto hook = make_comm_hook([&](const GradBucket& bucket, Group& ranks) {
      EXPECT_EQ(bucket.buffer.device(), device);
      sent.push_back(bucket.names.front());
      return ranks.all_reduce_async(bucket.buffer, {.op = ReduceOp::Average});
    });
    DistributedDataParallel ddp(net, group,
                                {.bucket_bytes = 1, .first_bucket_bytes = 1, .comm_hook = hook});
    for (int step = 0; step < 2; ++step) {
      sent.clear();
      net->zero_grad();
      ddp(torch::ones({2, 4}, device)).sum().backward();
    }
    ASSERT_EQ(sent.size(), 4u);
    EXPECT_THAT(sent[0], ::testing::StartsWith("last"));
    EXPECT_THAT(sent[3], ::testing::StartsWith("first"));
  });
}

// Tied, frozen, channels-last, transposed, scalar, empty, and of three types.
struct OddOnDeviceImpl : torch::nn::Module {
  OddOnDeviceImpl() {
    torch::manual_seed(3);
    conv = register_module("conv", torch::nn::Conv2d(3, 8, 3));
    conv->weight.set_data(conv->weight.contiguous(torch::MemoryFormat::ChannelsLast));
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
    auto y = conv(x).mean({2, 3});
    y = torch::mm(torch::tanh(torch::mm(y, tied)), tied) * scalar + frozen;
    const auto in_double = y.to(torch::kDouble) * wide;
    const auto in_half = y.to(torch::kBFloat16) * half;
    y = in_double.to(torch::kFloat) + in_half.to(torch::kFloat);
    return torch::mm(y, transposed.t()).mean() + none.sum();
  }
  torch::nn::Conv2d conv{nullptr};
  torch::Tensor tied, frozen, transposed, scalar, none, wide, half;
};
TORCH_MODULE(OddOnDevice);

TEST_P(DdpOnDevice, ParametersOfEveryKindGetTheAverageInTheirOwnLayout) {
  run(2, [](Group& group, at::Device device) {
    OddOnDevice net, mine, other;
    for (OddOnDevice model : {net, mine, other}) {
      model->to(device);
    }
    const auto input = [&](int rank) { return torch::full({2, 3, 6, 6}, rank + 1.0f, device); };
    DistributedDataParallel ddp(net, group);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      ddp(input(group.rank())).backward();
    }
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
      expect_close_tensors(item.value().grad(), sum / 2, item.key(),
                           item.key() == "half" ? 1e-2 : 1e-4);
      EXPECT_EQ(item.value().grad().strides(), item.value().strides()) << item.key();
      EXPECT_EQ(item.value().grad().scalar_type(), item.value().scalar_type()) << item.key();
    }
  });
}

// ---- what waits for the device, and in which order things happen there ----

// Counts the operations by which the host reads a tensor, on all threads.
class ReadCounter {
 public:
  ReadCounter()
      : handle_(at::addGlobalCallback(
            at::RecordFunctionCallback(&count).scopes({at::RecordScope::FUNCTION}))) {
    num_reads = 0;
  }
  ~ReadCounter() { at::removeCallback(handle_); }
  ReadCounter(const ReadCounter&) = delete;
  ReadCounter& operator=(const ReadCounter&) = delete;

  static int so_far() { return num_reads.load(); }

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    static const std::set<std::string_view> kReads = {"aten::_local_scalar_dense", "aten::equal",
                                                      "aten::nonzero", "aten::is_nonzero"};
    if (kReads.count(function.name()) != 0) {
      ++num_reads;
    }
    return nullptr;
  }
  inline static std::atomic<int> num_reads{0};
  at::CallbackHandle handle_;
};

TEST_P(DdpOnDevice, AStepReadsNothingBackAndClippingReadsOnce) {
  run(2, [](Group& group, at::Device device) {
    for (const DdpOptions& options :
         {DdpOptions{.bucket_bytes = 300}, DdpOptions{.find_unused_parameters = true},
          DdpOptions{.static_graph = true}, DdpOptions{.shards = 4}}) {
      Net net = make_net_on(device);
      DistributedDataParallel ddp(net, group, options);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      const torch::Tensor rows = rows_of(batch_on(device, 2), group.rank());
      const auto step = [&] {
        optimizer.zero_grad();
        for (int shard = 0; shard < ddp.num_local_shards(); ++shard) {
          loss_of(ddp(rows)).backward();
        }
        optimizer.step();
      };
      step();
      step();
      const ReadCounter counter;
      step();
      EXPECT_EQ(counter.so_far(), 0);
      ddp.clip_grad_norm(1e-3);
      EXPECT_LE(counter.so_far(), 1);
      (void)net->scale.item<double>();
      EXPECT_GE(counter.so_far(), 1) << "the counter counts nothing";
    }
  });
}

// A chain that keeps the device busy for a while, and whose gradients depend on all of it.
torch::Tensor slowly(torch::Tensor x, int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) {
    x = x + (torch::sin(x) - torch::sin(x)) * 1e-3;
  }
  return x;
}

TEST_P(DdpOnDevice, EveryStreamSeesTheAverage) {
  run(2, [](Group& group, at::Device device) {
    if (device.is_cpu()) {
      return;  // it has no streams
    }
    const c10::impl::VirtualGuardImpl streams(device.type());
    Net net = make_net_on(device);
    Net reference = make_net_on(device);
    DistributedDataParallel ddp(net, group, {.bucket_bytes = 300, .first_bucket_bytes = 64});
    for (int step = 0; step < 12; ++step) {
      streams.synchronizeDevice(0);
      const c10::StreamGuard on_stream(step % 3 == 0 ? streams.getDefaultStream(device)
                                                     : streams.getStreamFromGlobalPool(device));
      const torch::Tensor batch = batch_on(device, group.size(), step);
      net->zero_grad(step % 2 == 0);
      reference->zero_grad();
      loss_of(ddp(slowly(rows_of(batch, group.rank()), 300))).backward();
      // Read at once, on this stream, without a wait in between.
      std::vector<torch::Tensor> found;
      for (const auto& parameter : net->parameters()) {
        found.push_back(parameter.grad().clone());
      }
      loss_of(reference(batch)).backward();
      const auto expected = reference->parameters();
      for (size_t i = 0; i < found.size(); ++i) {
        expect_close_tensors(found[i], expected[i].grad(),
                             fmt::format("step {}, parameter {}", step, i));
      }
    }
  });
}

TEST_P(DdpOnDevice, ClipGradNormIsThatOfTheSynchronisedGradient) {
  for (const int world : {1, 2}) {
    run(world, [](Group& group, at::Device device) {
      Net net = make_net_on(device);
      Net reference = make_net_on(device);
      DistributedDataParallel ddp(net, group, {.bucket_bytes = 300});
      const torch::Tensor batch = batch_on(device, group.size());
      for (const double limit : {1e-3, 1e3}) {
        net->zero_grad();
        reference->zero_grad();
        loss_of(ddp(rows_of(batch, group.rank()))).backward();
        loss_of(reference(batch)).backward();
        const double norm = ddp.clip_grad_norm(limit);
        const double expected = torch::nn::utils::clip_grad_norm_(reference->parameters(), limit);
        EXPECT_NEAR(norm, expected, 1e-9 * expected);
        expect_close_tensors(net->first->weight.grad(), reference->first->weight.grad(), "clipped");
      }
    });
  }
}

TEST_P(DdpOnDevice, VerifyFindsTheFirstParameterThatDiffers) {
  run(3, [](Group& group, at::Device device) {
    Net net = make_net_on(device);
    DistributedDataParallel ddp(net, group, {.verify_every = 2});
    const auto step = [&] {
      net->zero_grad();
      loss_of(ddp(rows_of(batch_on(device, 3), group.rank()))).backward();
    };
    for (int i = 0; i < 4; ++i) {
      step();
    }
    ddp.verify();
    if (group.rank() == 2) {
      const torch::NoGradGuard no_grad;
      net->second->bias[0] += 1e-15;
    }
    try {
      step();
      ADD_FAILURE() << "not found";
    } catch (const DesyncError& error) {
      EXPECT_THAT(error.what(), HasSubstr("'second.bias' of rank 2 differs"));
    }
  });
}

// ---- where the tensors are ----

TEST_P(DdpOnDevice, RanksOnDevicesOfDifferentKindsAreNamed) {
  run(2, [](Group& group, at::Device device) {
    if (device.is_cpu()) {
      return;
    }
    const auto wrap = [&](Net net) {
      return refusal([&] { const DistributedDataParallel ddp(net, group); });
    };
    const at::Device own = group.rank() == 0 ? at::Device(at::kCPU) : device;
    EXPECT_THAT(wrap(make_net_on(own)),
                HasSubstr("rank 1 has first.weight: Double [16, 4] on cuda"));
    Net spread = make_net_on(device);
    spread->spare->to(at::Device(at::kCPU));
    EXPECT_THAT(wrap(spread), HasSubstr("the model is spread over several devices"));
    group.barrier();
    Net moved = make_net_on(at::Device(at::kCPU));
    DistributedDataParallel ddp(moved, group);
    moved->to(device);
    EXPECT_THAT(refusal([&] { ddp(batch_on(device, 1)); }),
                HasSubstr("was on cpu when the model was wrapped and is on cuda:0 now"));
    group.barrier();
  });
}

}  // namespace
}  // namespace lockstep

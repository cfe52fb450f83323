// SyncBatchNorm and ZeroRedundancyOptimizer on a device.

#include <numeric>
#include <sstream>

#include <gmock/gmock.h>

#include <lockstep/base/error.h>
#include <lockstep/ddp/sync_batch_norm.h>
#include <lockstep/ddp/zero_redundancy_optimizer.h>

#include "ddp/on_device.h"
#include "support/refusal.h"

namespace lockstep {
namespace {

using test::refusal;
using ::testing::HasSubstr;
using torch::nn::BatchNormOptions;

// ---- batch statistics of all ranks ----

class SyncBatchNormOnDevice : public OnDevice {};
LOCKSTEP_ON_DEVICE(SyncBatchNormOnDevice);

constexpr int64_t kChannels = 3;

struct NormCase {
  std::string name;
  std::vector<int64_t> sizes;  // batch of each rank
  torch::ScalarType type = torch::kDouble;
  bool is_channels_last = false;
  double tolerance = 1e-11;
};

// `local` on each rank's slice against `whole`, libtorch's own, on everything.
template <typename Local>
void expect_as_whole_batch(Group& group, at::Device device, Local& local,
                           torch::nn::BatchNorm2d& whole, const NormCase& test) {
  const auto end_of = [&](int rank) {
    return std::accumulate(test.sizes.begin(), test.sizes.begin() + rank, int64_t{0});
  };
  const int64_t begin = end_of(group.rank());
  const auto slice = [&](const torch::Tensor& tensor) {
    return tensor.narrow(0, begin, test.sizes[static_cast<size_t>(group.rank())]);
  };
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(static_cast<uint64_t>(100 + step));
    const std::vector<int64_t> shape{end_of(group.size()), kChannels, 4, 5};
    torch::Tensor all = (torch::randn(shape, torch::kDouble) * 3 + 5).to(device, test.type);
    const torch::Tensor loss_weight = torch::randn(shape, torch::kDouble).to(device, test.type);
    if (test.is_channels_last) {
      all = all.contiguous(torch::MemoryFormat::ChannelsLast);
    }
    torch::Tensor input = slice(all).detach().clone().set_requires_grad(true);
    all.set_requires_grad(true);
    local->zero_grad();
    whole->zero_grad();
    const torch::Tensor expected = whole->forward(all);
    (expected * loss_weight).sum().backward();
    const torch::Tensor output = local->forward(input);
    (output * slice(loss_weight)).sum().backward();

    const std::string where = fmt::format("{}, step {}, ", test.name, step);
    EXPECT_EQ(output.scalar_type(), test.type);
    expect_close_tensors(output, slice(expected), where + "output", test.tolerance);
    expect_close_tensors(input.grad(), slice(all.grad()), where + "gradient", test.tolerance);
    for (const auto& item : whole->named_parameters()) {
      torch::Tensor gradient = local->named_parameters()[item.key()].grad().cpu();
      group.all_reduce(gradient);
      expect_close_tensors(gradient, item.value().grad().cpu(), where + item.key(),
                           10 * test.tolerance);
    }
  }
  const auto buffers = local->named_buffers();
  for (const auto& item : whole->named_buffers()) {
    expect_close_tensors(buffers[item.key()], item.value(), test.name + ", " + item.key(),
                         test.tolerance);
    EXPECT_TRUE(same_everywhere(group, buffers[item.key()])) << test.name << ", " << item.key();
  }
}

void check_norm(Group& group, at::Device device, const BatchNormOptions& options,
                const NormCase& test) {
  const auto make = [&](auto module) {
    torch::manual_seed(7);
    if (options.affine()) {
      const torch::NoGradGuard no_grad;
      module->weight.uniform_(-1, 2);
      module->bias.uniform_(-1, 1);
    }
    // Reduced types keep float32 parameters, the usual mixed form.
    module->to(device, test.type == torch::kDouble ? torch::kDouble : torch::kFloat);
    return module;
  };
  auto whole = make(torch::nn::BatchNorm2d(options));
  auto synced = make(SyncBatchNorm(options, group));
  expect_as_whole_batch(group, device, synced, whole, test);
  auto again = make(torch::nn::BatchNorm2d(options));
  auto converted = make(torch::nn::BatchNorm2d(options));
  EXPECT_EQ(convert_sync_batch_norm(*converted, group), 1);
  expect_as_whole_batch(group, device, converted, again, test);
}

TEST_P(SyncBatchNormOnDevice, IsBatchNormOverTheBatchOfAllRanks) {
  run(3, [](Group& group, at::Device device) {
    const BatchNormOptions plain(kChannels);
    check_norm(group, device, plain, {"equal", {5, 5, 5}});
    check_norm(group, device, plain, {"uneven", {1, 7, 2}});
    check_norm(group, device, plain, {"empty", {4, 0, 3}});
    check_norm(group, device, plain, {"channels last", {4, 1, 3}, torch::kDouble, true});
    check_norm(group, device, plain, {"float", {4, 2, 3}, torch::kFloat, false, 1e-5});
    check_norm(group, device, plain,
               {"float, channels last", {4, 2, 3}, torch::kFloat, true, 1e-5});
    check_norm(group, device, plain, {"half", {4, 2, 3}, torch::kHalf, false, 1e-2});
    check_norm(group, device, plain, {"bfloat16", {4, 2, 3}, torch::kBFloat16, false, 5e-2});
    check_norm(group, device, BatchNormOptions(plain).affine(false), {"not affine", {4, 2, 3}});
    check_norm(group, device, BatchNormOptions(plain).momentum(std::nullopt),
               {"plain average", {4, 2, 3}});
    check_norm(group, device, BatchNormOptions(plain).track_running_stats(false),
               {"no statistics", {4, 2, 3}});
  });
}

TEST_P(SyncBatchNormOnDevice, OneValueInAllIsRefusedOnEveryRank) {
  run(2, [](Group& group, at::Device device) {
    SyncBatchNorm norm(kChannels, group);
    norm->to(device);
    EXPECT_THAT(refusal([&] {
                  norm(torch::ones({1 - group.rank(), kChannels}, device));
                }),
                HasSubstr("expected more than 1 value per channel"));
    EXPECT_EQ(norm(torch::ones({0, kChannels}, device)).numel(), 0);  // nobody has any
    EXPECT_TRUE(norm->running_mean.eq(0).all().item<bool>());
    EXPECT_EQ(norm(torch::ones({1, kChannels}, device)).numel(), kChannels);  // one on each
    group.barrier();
  });
}

struct NormedOnDeviceImpl : torch::nn::Module {
  NormedOnDeviceImpl() {
    torch::manual_seed(1);
    body = register_module(
        "body", torch::nn::Sequential(torch::nn::Conv2d(2, 4, 3), torch::nn::BatchNorm2d(4),
                                      torch::nn::ReLU(), torch::nn::Conv2d(4, 4, 1)));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) { return norm(body->forward(x).mean({2, 3})); }
  torch::nn::Sequential body{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(NormedOnDevice);

TEST_P(SyncBatchNormOnDevice, AConvertedModelUnderDdpTrainsAsOneProcess) {
  run(3, [](Group& group, at::Device device) {
    NormedOnDevice net, whole;
    EXPECT_EQ(convert_sync_batch_norm(*net, group), 2);
    net->to(device);  // after the conversion: the mark stays
    whole->to(device);
    DistributedDataParallel ddp(net, group, {.bucket_bytes = 200});
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    torch::optim::SGD whole_optimizer(whole->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      torch::manual_seed(static_cast<uint64_t>(50 + step));
      const torch::Tensor x = torch::randn({12, 2, 5, 5}, torch::kDouble).to(device);
      const torch::Tensor target = torch::randn({12, 4}, torch::kDouble).to(device);
      const auto mine = [&](const torch::Tensor& t) { return t.narrow(0, 4 * group.rank(), 4); };
      optimizer.zero_grad();
      torch::mse_loss(ddp(mine(x)), mine(target)).backward();
      optimizer.step();
      whole_optimizer.zero_grad();
      torch::mse_loss(whole(x), target).backward();
      whole_optimizer.step();
    }
    expect_close_models(net, whole, "converted", 1e-8);
    expect_same_everywhere(group, net);
    for (const auto& item : whole->named_buffers()) {
      expect_close_tensors(net->named_buffers()[item.key()], item.value(), item.key(), 1e-8);
    }
  });
}

// ---- one optimizer state for all ranks ----

class ZeroOnDevice : public OnDevice {};
LOCKSTEP_ON_DEVICE(ZeroOnDevice);

std::vector<torch::Tensor> parameters_on(at::Device device) {
  torch::manual_seed(5);
  std::vector<torch::Tensor> parameters{
      torch::randn({40, 30}), torch::randn({7}),    torch::randn({4, 3, 5, 5}),
      torch::randn({}),       torch::randn({0, 3}), torch::randn({25, 20}, torch::kDouble),
  };
  parameters[2] = parameters[2].contiguous(torch::MemoryFormat::ChannelsLast);
  for (auto& parameter : parameters) {
    parameter = parameter.to(device).detach().set_requires_grad(true);
  }
  return parameters;
}

void set_gradients_on(const std::vector<torch::Tensor>& parameters, int step) {
  torch::manual_seed(static_cast<uint64_t>(step + 900));
  for (const auto& parameter : parameters) {
    parameter.mutable_grad() =
        torch::randn(parameter.sizes(), parameter.scalar_type()).to(parameter.device());
  }
}

void expect_equal_bits(const std::vector<torch::Tensor>& found,
                       const std::vector<torch::Tensor>& expected, const std::string& what) {
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(found[i].equal(expected[i])) << what << ", parameter " << i;
    EXPECT_EQ(found[i].strides(), expected[i].strides()) << what << ", parameter " << i;
  }
}

template <typename Base, typename Options>
void check_zero(Group& group, at::Device device, const Options& options, const std::string& what) {
  for (const bool as_views : {false, true}) {
    const auto parameters = parameters_on(device);
    const auto reference = parameters_on(device);
    ZeroRedundancyOptimizer<Base> optimizer(parameters, options, group,
                                            {.parameters_as_views = as_views});
    Base plain(reference, options);
    for (int step = 0; step < 4; ++step) {
      set_gradients_on(parameters, step);
      set_gradients_on(reference, step);
      optimizer.step();
      plain.step();
      expect_equal_bits(parameters, reference, fmt::format("{}, step {}", what, step));
    }
  }
}

TEST_P(ZeroOnDevice, GivesTheBitsOfThePlainOptimizer) {
  for (const int world : {1, 2, 3}) {
    run(world, [](Group& group, at::Device device) {
      using namespace torch::optim;
      check_zero<SGD>(group, device, SGDOptions(0.1).momentum(0.9), "SGD");
      check_zero<AdamW>(group, device, AdamWOptions(1e-2), "AdamW");
      check_zero<Adagrad>(group, device, AdagradOptions(0.1), "Adagrad");
    });
  }
}

TEST_P(ZeroOnDevice, FilesAreThoseOfThePlainOptimizer) {
  run(3, [](Group& group, at::Device device) {
    const torch::optim::AdamWOptions options(1e-2);
    using Zero = ZeroRedundancyOptimizer<torch::optim::AdamW>;
    const auto reference = parameters_on(device);
    torch::optim::AdamW plain(reference, options);
    const auto parameters = parameters_on(device);
    Zero optimizer(parameters, options, group);
    for (int step = 0; step < 2; ++step) {
      set_gradients_on(parameters, step);
      set_gradients_on(reference, step);
      optimizer.step();
      plain.step();
    }
    std::string file;
    for (int to = 0; to < group.size(); ++to) {  // so that each has it
      optimizer.consolidate(to);
      if (group.rank() == to) {
        std::ostringstream stream;
        torch::serialize::OutputArchive archive;
        optimizer.save(archive);
        archive.save_to(stream);
        file = stream.str();
      }
    }
    const auto load = [&](torch::optim::Optimizer& into) {
      std::istringstream stream(file);
      torch::serialize::InputArchive archive;
      archive.load_from(stream);
      into.load(archive);
    };
    Zero again(parameters, torch::optim::AdamWOptions(9.0), group);
    load(again);
    torch::optim::AdamW alone(reference, torch::optim::AdamWOptions(9.0));
    load(alone);
    set_gradients_on(parameters, 2);
    set_gradients_on(reference, 2);
    again.step();
    alone.step();
    expect_equal_bits(parameters, reference, "after loading");
  });
}

TEST_P(ZeroOnDevice, ParametersOnDevicesOfDifferentKindsAreNamed) {
  run(2, [](Group& group, at::Device device) {
    if (device.is_cpu()) {
      return;
    }
    using Zero = ZeroRedundancyOptimizer<torch::optim::SGD>;
    const auto on = [](at::Device where) {
      return torch::ones({2, 3}).to(where).set_requires_grad(true);
    };
    const at::Device cpu(at::kCPU);
    const auto make = [&](std::vector<torch::Tensor> parameters) {
      return refusal(
          [&] { const Zero optimizer(parameters, torch::optim::SGDOptions(0.1), group); });
    };
    EXPECT_THAT(make({on(group.rank() == 0 ? cpu : device)}),
                HasSubstr("rank 1 has parameter 0 of group 0: Float [2, 3] on cuda"));
    EXPECT_THAT(make({on(device), on(cpu)}), HasSubstr("parameter 1 of group 0 is on cpu"));
    group.barrier();
  });
}

}  // namespace
}  // namespace lockstep

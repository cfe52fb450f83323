#include <numeric>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/ddp/sync_batch_norm.h>

#include "ddp/synced_batch_norm.h"
#include "support/fleet.h"
#include "support/gradcheck.h"
#include "support/same_bits.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using testing_support::gradcheck;
using testing_support::run_ranks;
using testing_support::same_on_all_ranks;
using torch::nn::BatchNormOptions;

constexpr int64_t kChannels = 3;
constexpr int kSteps = 3;

// The whole batch of one step and what the loss weighs its outputs with, the same on every rank.
struct Batch {
  torch::Tensor input;
  torch::Tensor loss_weight;
};

Batch make_batch(const std::vector<int64_t>& shape, torch::ScalarType type, int step) {
  torch::manual_seed(static_cast<uint64_t>(100 + step));
  const auto options = torch::dtype(torch::kDouble);
  Batch batch{torch::randn(shape, options) * 3 + 5, torch::randn(shape, options)};
  return {batch.input.to(type), batch.loss_weight.to(type)};
}

struct Case {
  std::vector<int64_t> inner;  // dimensions behind (N, C)
  std::vector<int64_t> sizes;  // batch of each rank
  torch::ScalarType type = torch::kDouble;
  bool is_channels_last = false;
  double tolerance = 1e-12;
};

int64_t sum(const std::vector<int64_t>& values, int count) {
  return std::accumulate(values.begin(), values.begin() + count, int64_t{0});
}

bool is_close(const torch::Tensor& a, const torch::Tensor& b, double tolerance) {
  return a.sizes() == b.sizes() &&
         a.to(torch::kDouble).allclose(b.to(torch::kDouble), tolerance, tolerance);
}

// `local` on each rank's slice against `whole`, libtorch's own, on everything, for several steps.
template <typename Local, typename Whole>
void expect_same_as_whole_batch(Group& group, Local& local, Whole& whole, const Case& test) {
  std::vector<int64_t> shape{sum(test.sizes, group.size()), kChannels};
  shape.insert(shape.end(), test.inner.begin(), test.inner.end());
  const double tolerance = test.tolerance;
  for (int step = 0; step < kSteps; ++step) {
    Batch batch = make_batch(shape, test.type, step);
    if (test.is_channels_last) {
      batch.input = batch.input.contiguous(torch::MemoryFormat::ChannelsLast);
    }
    torch::Tensor input_of_all = batch.input.clone().set_requires_grad(true);
    const int64_t begin = sum(test.sizes, group.rank());
    const auto slice = [&](const torch::Tensor& tensor) {
      return tensor.narrow(0, begin, test.sizes[static_cast<size_t>(group.rank())]);
    };
    torch::Tensor input = slice(batch.input).detach().clone().set_requires_grad(true);
    local->zero_grad();
    whole->zero_grad();

    const torch::Tensor expected = whole->forward(input_of_all);
    (expected * batch.loss_weight).sum().backward();
    const torch::Tensor output = local->forward(input);
    (output * slice(batch.loss_weight)).sum().backward();

    EXPECT_EQ(output.scalar_type(), test.type);
    EXPECT_TRUE(is_close(output, slice(expected), tolerance)) << "step " << step;
    EXPECT_TRUE(is_close(input.grad(), slice(input_of_all.grad()), tolerance)) << "step " << step;
    if (test.is_channels_last && output.numel() > 0) {
      EXPECT_TRUE(output.is_contiguous(torch::MemoryFormat::ChannelsLast));
      EXPECT_TRUE(input.grad().is_contiguous(torch::MemoryFormat::ChannelsLast));
    }
    for (const auto& item : whole->named_parameters()) {
      torch::Tensor gradient = local->named_parameters()[item.key()].grad().clone();
      group.all_reduce(gradient);
      EXPECT_TRUE(is_close(gradient, item.value().grad(), tolerance)) << item.key();
    }
  }
  const auto buffers = local->named_buffers();
  EXPECT_EQ(buffers.keys(), whole->named_buffers().keys());
  for (const auto& item : whole->named_buffers()) {
    EXPECT_TRUE(is_close(buffers[item.key()], item.value(), tolerance)) << item.key();
    EXPECT_TRUE(same_on_all_ranks(group, buffers[item.key()])) << item.key();
  }
}

// SyncBatchNorm, and a converted BatchNorm, each against BatchNorm on the whole batch.
template <typename BatchNorm>
void check_both(Group& group, const BatchNormOptions& options, const Case& test) {
  const auto make = [&](auto module) {
    torch::manual_seed(7);
    if (options.affine()) {
      const torch::NoGradGuard no_grad;
      module->weight.uniform_(-1, 2);
      module->bias.uniform_(-1, 1);
    }
    // Reduced types keep float32 parameters, the usual mixed form.
    module->to(test.type == torch::kDouble ? torch::kDouble : torch::kFloat);
    return module;
  };
  {
    auto local = make(SyncBatchNorm(options, group));
    auto whole = make(BatchNorm(options));
    expect_same_as_whole_batch(group, local, whole, test);
  }
  auto local = make(BatchNorm(options));
  EXPECT_EQ(convert_sync_batch_norm(*local, group), 1);
  auto whole = make(BatchNorm(options));
  expect_same_as_whole_batch(group, local, whole, test);
}

std::vector<int64_t> equal_sizes(const Group& group, int64_t size) {
  return std::vector<int64_t>(static_cast<size_t>(group.size()), size);
}

TEST(SyncBatchNorm, IsBatchNormOverTheBatchOfAllRanks) {
  for (const int world : {1, 2, 3, 4}) {
    run_ranks(world, [](Group& group) {
      const auto sizes = equal_sizes(group, 5);
      check_both<torch::nn::BatchNorm1d>(group, BatchNormOptions(kChannels), {{}, sizes});
      check_both<torch::nn::BatchNorm1d>(group, BatchNormOptions(kChannels), {{7}, sizes});
      check_both<torch::nn::BatchNorm2d>(group, BatchNormOptions(kChannels), {{4, 5}, sizes});
      check_both<torch::nn::BatchNorm3d>(group, BatchNormOptions(kChannels), {{2, 3, 2}, sizes});
    });
  }
}

TEST(SyncBatchNorm, RanksMayHaveBatchesOfDifferentSizesAndNone) {
  for (const int world : {2, 3, 4}) {
    run_ranks(world, [](Group& group) {
      for (const auto& sizes : {std::vector<int64_t>{5, 2, 9, 3}, {4, 0, 3, 2}, {0, 6, 0, 0}}) {
        check_both<torch::nn::BatchNorm2d>(group, BatchNormOptions(kChannels), {{4, 5}, sizes});
        check_both<torch::nn::BatchNorm1d>(group, BatchNormOptions(kChannels), {{}, sizes});
      }
    });
  }
}

TEST(SyncBatchNorm, OneValuePerRankIsEnoughIfAllRanksHaveMore) {
  run_ranks(3, [](Group& group) {
    SyncBatchNorm local(BatchNormOptions(kChannels), group);
    local->to(torch::kDouble);
    torch::nn::BatchNorm1d whole(kChannels);
    whole->to(torch::kDouble);
    expect_same_as_whole_batch(group, local, whole, {{}, {1, 1, 1}});
  });
}

TEST(SyncBatchNorm, HoldsForEveryOption) {
  run_ranks(3, [](Group& group) {
    const Case test{{4, 5}, {5, 2, 3}};
    const BatchNormOptions plain(kChannels);
    const auto check = [&](BatchNormOptions options) {
      check_both<torch::nn::BatchNorm2d>(group, options, test);
    };
    check(BatchNormOptions(plain).affine(false));
    check(BatchNormOptions(plain).momentum(std::nullopt));
    check(BatchNormOptions(plain).momentum(0.7).eps(0.25));
    check(BatchNormOptions(plain).track_running_stats(false));
    check(BatchNormOptions(plain).track_running_stats(false).affine(false));
  });
}

TEST(SyncBatchNorm, KeepsLayoutAndTypes) {
  run_ranks(2, [](Group& group) {
    const BatchNormOptions options(kChannels);
    const std::vector<int64_t> sizes{4, 3};
    check_both<torch::nn::BatchNorm2d>(group, options, {{4, 5}, sizes, torch::kDouble, true});
    check_both<torch::nn::BatchNorm2d>(group, options, {{4, 5}, {4, 0}, torch::kDouble, true});
    check_both<torch::nn::BatchNorm2d>(group, options, {{4, 5}, sizes, torch::kFloat, false, 1e-5});
    check_both<torch::nn::BatchNorm2d>(group, options, {{4, 5}, sizes, torch::kFloat, true, 1e-5});
    check_both<torch::nn::BatchNorm2d>(group, options,
                                       {{4, 5}, sizes, torch::kBFloat16, false, 3e-2});
    check_both<torch::nn::BatchNorm2d>(group, options, {{4, 5}, sizes, torch::kHalf, false, 5e-3});
  });
}

TEST(SyncBatchNorm, WorksOnEveryBackend) {
  for (const auto& setting : testing_support::kEveryBackend) {
    run_ranks(
        2,
        [](Group& group) {
          check_both<torch::nn::BatchNorm2d>(group, BatchNormOptions(kChannels), {{4, 5}, {5, 2}});
        },
        {.nodes = setting.nodes, .backend = setting.backend});
  }
}

TEST(SyncBatchNorm, ASmallVarianceFarFromZeroIsExact) {
  run_ranks(2, [](Group& group) {
    SyncBatchNorm norm(BatchNormOptions(1).momentum(1.0), group);
    // float32 sums of squares around 1e4 would have no digit left for a variance of 1.
    norm(torch::tensor({9999.f, 10001.f}).view({2, 1}));
    EXPECT_EQ(norm->running_mean.item<float>(), 10000.f);
    EXPECT_NEAR(norm->running_var.item<float>(), 4.0 / 3, 1e-6);
  });
}

// SyncedBatchNorm: ranks with batches of different sizes, one of them empty; with and without
// weights.
TEST(SyncBatchNorm, ItsGradientIsTheDerivative) {
  for (const int world : {1, 3}) {
    run_ranks(world, [](Group& group) {
      const auto options = torch::dtype(torch::kDouble);
      torch::manual_seed(11);
      const at::Tensor weight = torch::rand({kChannels}, options) + 0.5;  // on all ranks the same
      const at::Tensor bias = torch::randn({kChannels}, options);
      torch::manual_seed(static_cast<uint64_t>(12 + group.rank()));
      const int64_t size = group.rank() == 1 ? 0 : 3 - group.rank();
      const at::Tensor input = torch::randn({size, kChannels, 2}, options) * 2 + 1;
      gradcheck(group, {input, weight, bias}, [&group](const auto& x) {
        return ddp::synced_batch_norm(x[0], {.weight = x[1], .bias = x[2]}, {.eps = 0.01}, group);
      });
      gradcheck(group, {input}, [&group](const auto& x) {
        return ddp::synced_batch_norm(x[0], {}, {.eps = 0.01}, group);
      });
    });
  }
}

TEST(SyncBatchNorm, EvalUsesRunningStatisticsAndDoesNotCommunicate) {
  run_ranks(2, [](Group& group) {
    for (const bool tracks : {true, false}) {
      const auto options = BatchNormOptions(kChannels).track_running_stats(tracks);
      SyncBatchNorm norm(options, group);
      torch::nn::BatchNorm2d converted(options);
      convert_sync_batch_norm(*converted, group);
      torch::nn::BatchNorm2d plain(options);
      torch::manual_seed(3);
      const torch::Tensor x = torch::randn({4, kChannels, 2, 2}) + group.rank();
      for (torch::nn::Module* module :
           std::initializer_list<torch::nn::Module*>{norm.get(), converted.get(), plain.get()}) {
        module->eval();
        if (tracks) {
          module->named_buffers()["running_mean"].fill_(0.5);
        }
      }
      if (group.rank() == 0) {  // alone: this would wait for the other rank if it communicated
        EXPECT_TRUE(norm(x).equal(plain(x)));
        EXPECT_TRUE(converted(x).equal(plain(x)));
      }
    }
  });
}

TEST(SyncBatchNorm, ChecksTheInput) {
  run_ranks(2, [](Group& group) {
    SyncBatchNorm norm(kChannels, group);
    EXPECT_THROW(norm(torch::ones({4})), UsageError);
    EXPECT_THROW(norm(torch::ones({4, kChannels + 1})), UsageError);
    try {  // one value on rank 0, none on rank 1
      norm(torch::ones({1 - group.rank(), kChannels}));
      ADD_FAILURE() << "accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("expected more than 1 value per channel"));
    }
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
    EXPECT_EQ(norm(torch::ones({0, kChannels})).numel(), 0);  // nobody has any
    EXPECT_TRUE(norm->running_mean.equal(torch::zeros({kChannels})));
    torch::Tensor x = torch::randn({4, kChannels}).set_requires_grad(true);
    const torch::Tensor loss = norm(x).pow(2).sum();
    EXPECT_THROW(torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true), UsageError);
    group.barrier();
  });
  SyncBatchNorm alone(kChannels, make_single_group());
  EXPECT_THROW(alone(torch::ones({1, kChannels})), UsageError);
}

TEST(SyncBatchNorm, SharesCheckpointsWithBatchNorm) {
  SyncBatchNorm norm(kChannels, make_single_group());
  norm(torch::randn({8, kChannels}));
  torch::nn::BatchNorm1d plain(kChannels);
  std::stringstream file;
  torch::save(norm, file);
  torch::load(plain, file);
  EXPECT_TRUE(plain->running_var.equal(norm->running_var));
  EXPECT_EQ(plain->num_batches_tracked.item<int64_t>(), 1);
  SyncBatchNorm again(kChannels, make_single_group());
  std::stringstream other;
  torch::save(plain, other);
  torch::load(again, other);
  EXPECT_TRUE(again->running_mean.equal(norm->running_mean));
  std::stringstream text;
  text << *norm;
  EXPECT_THAT(text.str(), HasSubstr("lockstep::SyncBatchNorm(3, eps=1e-05, momentum=0.1"));
}

// A model as users write it: a member, a Sequential inside, an AnyModule, a list.
struct NormedNetImpl : torch::nn::Module {
  NormedNetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    body = register_module(
        "body", torch::nn::Sequential(torch::nn::Conv2d(4, 4, 1), torch::nn::BatchNorm2d(4)));
    any = torch::nn::AnyModule(torch::nn::BatchNorm2d(4));
    register_module("any", any.ptr());
    list = register_module("list", torch::nn::ModuleList(torch::nn::BatchNorm1d(4)));
    instance = register_module("instance", torch::nn::InstanceNorm2d(4));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = instance(any.forward(body->forward(torch::relu(norm(conv(x))))));
    return list[0]->as<torch::nn::BatchNorm1d>()->forward((y + y.pow(3)).mean({2, 3}));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Sequential body{nullptr};
  torch::nn::AnyModule any;
  torch::nn::ModuleList list{nullptr};
  torch::nn::InstanceNorm2d instance{nullptr};
};
TORCH_MODULE(NormedNet);

TEST(ConvertSyncBatchNorm, AConvertedModelUnderDdpTrainsAsOneProcess) {
  for (const int world : {1, 2, 3, 4}) {
    run_ranks(world, [](Group& group) {
      torch::manual_seed(1);
      NormedNet net;
      net->to(torch::kDouble);
      torch::manual_seed(1);
      NormedNet whole;
      whole->to(torch::kDouble);
      torch::optim::SGD optimizer(net->parameters(), 0.1);  // before the conversion: still valid
      torch::optim::SGD whole_optimizer(whole->parameters(), 0.1);
      EXPECT_EQ(convert_sync_batch_norm(*net, group), 4);
      EXPECT_EQ(convert_sync_batch_norm(*net, group), 4);
      DistributedDataParallel ddp(net, group, {.bucket_bytes = 200});
      for (int step = 0; step < kSteps; ++step) {
        torch::manual_seed(static_cast<uint64_t>(50 + step));
        const torch::Tensor x = torch::randn({4 * group.size(), 2, 5, 5}, torch::kDouble);
        const torch::Tensor target = torch::randn({4 * group.size(), 4}, torch::kDouble);
        const auto mine = [&](const torch::Tensor& t) { return t.narrow(0, 4 * group.rank(), 4); };
        optimizer.zero_grad();
        torch::mse_loss(ddp(mine(x)), mine(target)).backward();
        optimizer.step();
        whole_optimizer.zero_grad();
        torch::mse_loss(whole(x), target).backward();
        whole_optimizer.step();
      }
      for (const auto& item : whole->named_parameters()) {
        const torch::Tensor mine = net->named_parameters()[item.key()];
        EXPECT_TRUE(is_close(mine, item.value(), 1e-9)) << item.key();
        EXPECT_TRUE(same_on_all_ranks(group, mine)) << item.key();
      }
      for (const auto& item : whole->named_buffers()) {
        EXPECT_TRUE(is_close(net->named_buffers()[item.key()], item.value(), 1e-9)) << item.key();
      }
    });
  }
}

TEST(ConvertSyncBatchNorm, IsKeptByWhatKeepsTheTensorsAndUndoneByAGroupOfOne) {
  run_ranks(2, [](Group& group) {
    torch::nn::BatchNorm1d norm(1);
    torch::nn::BatchNorm1d stranger(1);
    convert_sync_batch_norm(*norm, group);
    const torch::Tensor x =
        torch::tensor({1.0, 2.0}, torch::kDouble).view({2, 1}) +
        10 * group.rank();  // mean over both ranks: 6.5; of this one 1.5 or 11.5
    const auto mean_seen_by = [&x](torch::nn::BatchNorm1d& module) {
      module->options.momentum(1.0);
      module(x.to(module->weight.dtype()));
      return module->running_mean.item<double>();
    };
    EXPECT_EQ(mean_seen_by(norm), 6.5);
    EXPECT_EQ(mean_seen_by(stranger), 1.5 + 10 * group.rank());
    norm->to(torch::kDouble);
    EXPECT_EQ(mean_seen_by(norm), 6.5);
    norm->eval();
    norm->train();
    EXPECT_EQ(mean_seen_by(norm), 6.5);
    std::stringstream file;
    torch::save(norm, file);
    torch::load(norm, file);
    EXPECT_EQ(mean_seen_by(norm), 6.5);
    {
      const torch::NoGradGuard no_grad;
      EXPECT_EQ(mean_seen_by(norm), 6.5);
    }
    {
      const c10::InferenceMode inference;
      EXPECT_EQ(mean_seen_by(norm), 6.5);
    }
    torch::nn::BatchNorm1d clone(
        std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(norm->clone()));
    EXPECT_EQ(mean_seen_by(clone), 1.5 + 10 * group.rank());
    convert_sync_batch_norm(*norm, make_single_group());
    EXPECT_EQ(mean_seen_by(norm), 1.5 + 10 * group.rank());
  });
}

}  // namespace
}  // namespace lockstep

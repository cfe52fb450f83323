// What surrounds a step: how ranks are bound, odd models, and the wrapper as an object.

#include <chrono>
#include <optional>
#include <sched.h>
#include <string_view>

#include <gmock/gmock.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/ddp/sync_batch_norm.h>

#include "base/process/cores.h"
#include "comm/start/host_cores.h"
#include "ddp/nets.h"
#include "support/pretended_cores.h"
#include "support/refusal.h"

namespace lockstep {
namespace {

using test::refusal;
using ::testing::HasSubstr;
using testing_support::run_ranks;

// While it lives, this thread may use one core only.
class BoundToOneCore {
 public:
  explicit BoundToOneCore(int core) {
    ::sched_getaffinity(0, sizeof before_, &before_);
    EXPECT_TRUE(base::stay_on_core(core));
  }
  ~BoundToOneCore() { ::sched_setaffinity(0, sizeof before_, &before_); }
  BoundToOneCore(const BoundToOneCore&) = delete;
  BoundToOneCore& operator=(const BoundToOneCore&) = delete;

 private:
  cpu_set_t before_{};
};

TEST(HostCores, AreThoseOfAllRanksTogetherHoweverEachIsBound) {
  for (const int nodes : {1, 2}) {
    run_ranks(3,
              [](Group& group) {
                const std::vector<int> cores = base::usable_cores();
                const int first = cores.front(), last = cores.back();
                const BoundToOneCore bound(group.rank() == 1 ? last : first);
                for (const comm::HostCores& host : comm::host_cores(group)) {
                  EXPECT_EQ(host.num_cores, first == last ? 1 : 2);
                  EXPECT_EQ(host.num_ranks, 3) << "emulated nodes share the machine";
                }
              },
              {.nodes = nodes});
  }
}

// One rank alone used to overlap here, and their collectives met in another order.
TEST(DdpOverlap, RanksBoundToDifferentNumbersOfCoresCallTheSameCollectives) {
  run_ranks(2, [](Group& group) {
    test::pretend_cores(group.rank() == 0 ? std::vector{0, 1, 2} : std::vector{1});
    std::string told;
    log::set_level(log::Level::Debug);
    log::set_sink([&](log::Level, std::string_view line) { told += line; });
    torch::nn::Sequential model(torch::nn::Linear(4, 8), SyncBatchNorm(8, group),
                                torch::nn::Linear(8, 2));
    DistributedDataParallel ddp(model, group, {.bucket_bytes = 64, .first_bucket_bytes = 64});
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp(torch::randn({6, 4})).sum().backward();
      EXPECT_TRUE(same_on_all_ranks(group, model->parameters()[0].grad()));
    }
    log::set_sink({});
    EXPECT_THAT(told, HasSubstr("reduced while backward computes: 2 ranks, 3 cores"));
  });
}

struct HollowImpl : torch::nn::Module {
  HollowImpl() {
    layer = register_module("layer", torch::nn::Linear(4, 2));
    hollow = register_parameter("hollow", torch::zeros({0, 3}, torch::kDouble));
  }
  torch::Tensor forward(const torch::Tensor& x) { return layer(x).sum() + hollow.sum(); }
  torch::nn::Linear layer{nullptr};
  torch::Tensor hollow;
};
TORCH_MODULE(Hollow);

TEST(DdpModel, AParameterWithoutElementsMayBeAloneInItsBucket) {
  for (const auto& setting : {BackendChoice::Shm, BackendChoice::Gloo}) {
    run_ranks(2,
              [](Group& group) {
                for (const int shards : {0, 4}) {
                  Hollow model;
                  DistributedDataParallel ddp(model, group, {.bucket_bytes = 1, .shards = shards});
                  torch::optim::SGD optimizer(ddp.parameters(), 0.1);
                  for (int step = 0; step < 3; ++step) {
                    optimizer.zero_grad();
                    for (int shard = 0; shard < ddp.num_local_shards(); ++shard) {
                      ddp(torch::full({1, 4}, group.rank() + 1.0f)).backward();
                    }
                    optimizer.step();
                  }
                  EXPECT_TRUE(model->hollow.grad().defined());
                  EXPECT_EQ(model->hollow.grad().numel(), 0);
                  EXPECT_TRUE(same_on_all_ranks(group, model->layer->weight));
                  EXPECT_TRUE(model->layer->weight.grad().equal(torch::full({2, 4}, 1.5f)));
                }
              },
              {.backend = setting});
  }
}

TEST(DdpModel, AnotherTypeAfterWrappingIsToldWithTheWayOut) {
  run_ranks(2, [](Group& group) {
    torch::nn::Linear model(4, 2);
    DistributedDataParallel ddp(model, group);
    ddp(torch::ones({1, 4})).sum().backward();
    ddp.zero_grad();
    model->to(torch::kDouble);
    const auto input = torch::ones({1, 4}, torch::kDouble);
    const auto part = HasSubstr("'weight' was Float when the model was wrapped and is Double now");
    EXPECT_THAT(refusal([&] { ddp(input); }), part);
    group.barrier();
    DistributedDataParallel again(model, group);
    again(input).sum().backward();
    EXPECT_EQ(model->weight.grad().scalar_type(), torch::kDouble);
  });
}

TEST(DdpModel, AnotherShapeAfterWrappingIsToldWithTheWayOut) {
  run_ranks(2, [](Group& group) {
    torch::nn::Linear model(torch::nn::LinearOptions(4, 2).bias(false));
    DistributedDataParallel ddp(model, group);
    model->weight.set_data(torch::zeros({5, 4}));
    EXPECT_THAT(refusal([&] {
                  ddp(torch::ones({1, 4}));
                }),
                HasSubstr("'weight' had the shape [2, 4] when the model was wrapped and has "
                          "[5, 4] now; make a new DistributedDataParallel"));
    group.barrier();
  });
}

TEST(DdpOptions, ThatDifferBetweenRanksAreNamedOnAll) {
  run_ranks(3, [](Group& group) {
    const bool is_odd = group.rank() == 2;
    const auto wrap = [&](DdpOptions options) {
      return refusal([&] { DistributedDataParallel(make_net(), group, std::move(options)); });
    };
    EXPECT_THAT(wrap({.bucket_bytes = is_odd ? 5 : 7}),
                HasSubstr("rank 0 has bucket_bytes = 7, rank 2 has bucket_bytes = 5"));
    EXPECT_THAT(wrap({.find_unused_parameters = is_odd}),
                HasSubstr("rank 2 has find_unused_parameters = true"));
    EXPECT_THAT(wrap({.bucket_bytes = is_odd ? -1 : 7}), HasSubstr("rank 2 has bucket_bytes = -1"));
    group.barrier();  // and the group still works
  });
}

// A rank leaves its group with the exception, while others may still be told of it.
TEST(DdpOptions, AllHearOfTheDifferenceThoughTheFirstLeavesWithItsGroup) {
  run_ranks(3, [](Group& group) {
    for (int round = 0; round < 30; ++round) {
      const std::string told = refusal([&] {
        Group own = make_group(group.store(), {.name = fmt::format("options/{}", round),
                                               .rank = group.rank(),
                                               .size = group.size(),
                                               .timeout = std::chrono::seconds(60)});
        DistributedDataParallel(make_net(), own, {.bucket_bytes = own.rank() == 1 ? 5 : 7});
      });
      EXPECT_THAT(told, HasSubstr("the options differ between ranks"));
    }
  });
}

TEST(DdpWrapper, NoSyncMovesIntoAnOptionalAndEndsOnce) {
  run_ranks(2, [](Group& group) {
    torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
    DistributedDataParallel ddp(model, group);
    const auto backward = [&] {
      ddp(torch::full({1, 1}, group.rank() + 1.0f)).sum().backward();
      return model->weight.grad().item<float>();
    };
    std::optional<NoSync> guard;
    guard = ddp.no_sync();
    guard = ddp.no_sync();  // the first one ends here
    NoSync moved(std::move(*guard));
    guard.reset();  // guards nothing any more
    EXPECT_EQ(backward(), group.rank() + 1.0f) << "still alone";
    ddp.zero_grad();
    guard.emplace(std::move(moved));
    guard.reset();
    EXPECT_EQ(backward(), 1.5f);
  });
}

TEST(DdpWrapper, HasWhatCodeForAModelCalls) {
  torch::nn::Linear model(2, 1);
  DistributedDataParallel ddp(model, make_single_group());
  EXPECT_EQ(ddp.parameters().size(), 2U);
  EXPECT_TRUE(ddp.named_parameters().contains("bias"));
  ddp.eval();
  EXPECT_FALSE(model->is_training());
  ddp.train();
  EXPECT_TRUE(model->is_training());
  ddp(torch::ones({1, 2})).sum().backward();
  ddp.zero_grad();
  EXPECT_FALSE(model->weight.grad().defined());
  std::optional<Join> join;
  join = ddp.join();
  join->wait();
}

// For models with several forwards, or whose forward is called by somebody else.
TEST(ReducerAlone, DoesWhatTheWrapperDoes) {
  run_ranks(3, [](Group& group) {
    Net wrapped_net = make_net(1);
    Net net = make_net(1);
    DistributedDataParallel ddp(wrapped_net, group);
    Reducer reducer(net.ptr(), group);
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor rows = rows_of(whole_batch(group.size(), step), group.rank());
      const std::optional<NoSync> local =
          step == 1 ? std::optional(reducer.no_sync()) : std::nullopt;
      const std::optional<NoSync> wrapped_local =
          step == 1 ? std::optional(ddp.no_sync()) : std::nullopt;
      loss_of(ddp(rows)).backward();
      reducer.begin_forward();
      const torch::Tensor output = net(rows);
      reducer.end_forward({output});
      loss_of(output).backward();
    }
    Reducer copy = reducer;  // stands for the same one
    EXPECT_EQ(copy.last_step().step, 2);
    EXPECT_EQ(copy.clip_grad_norm(1e9), ddp.clip_grad_norm(1e9));
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(item.value().grad().equal(wrapped_net->named_parameters()[item.key()].grad()));
    }
  });
}

}  // namespace
}  // namespace lockstep

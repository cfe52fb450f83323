// Bad use gets a sentence on every rank, never a hang.

#include <chrono>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <lockstep/base/error.h>

#include "ddp/nets.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing_support::die_now;
using testing_support::run_ranks;

template <typename Error, typename Body>
void expect_error(Body body, const std::string& part) {
  try {
    body();
    ADD_FAILURE() << "nothing thrown; expected: " << part;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(DdpError, AnotherModelOnOneRankIsNamedOnAll) {
  run_ranks(3, [](Group& group) {
    const bool is_odd = group.rank() == 2;
    const auto wrap = [&](auto model, DdpOptions options = {}) {
      const DistributedDataParallel ddp(model, group, options);
    };
    expect_error<UsageError>(
        [&] { wrap(std::make_shared<torch::nn::LinearImpl>(4, is_odd ? 3 : 2)); },
        "rank 0 has weight: Float [2, 4], rank 2 has weight: Float [3, 4]");
    expect_error<UsageError>(
        [&] {
          auto model = std::make_shared<torch::nn::LinearImpl>(4, 2);
          model->to(is_odd ? torch::kDouble : torch::kFloat);
          wrap(model);
        },
        "rank 2 has weight: Double");
    expect_error<UsageError>(
        [&] {
          auto model = std::make_shared<torch::nn::LinearImpl>(4, 2);
          model->bias.set_requires_grad(!is_odd);
          wrap(model);
        },
        "rank 2 has bias: Float [2] (not trained)");
    expect_error<UsageError>(
        [&] {
          wrap(std::make_shared<torch::nn::LinearImpl>(
              torch::nn::LinearOptions(4, 2).bias(!is_odd)));
        },
        "rank 0 has bias: Float [2], rank 2 has nothing more");
    expect_error<UsageError>(
        [&] {
          wrap(std::make_shared<torch::nn::LinearImpl>(4, 2),
               {.ignored = {is_odd ? "weight" : "bias"}});
        },
        "rank 0 has weight");
    group.barrier();  // and the group still works
  });
}

TEST(DdpError, ARankThatDiesInBackwardIsAnErrorOnTheOthers) {
  run_ranks(3,
            [](Group& group) {
              Net net = make_net();
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
              expect_error<PeerLostError>([&] { loss.backward(); }, "rank 1");
            },
            {.dies = {1}});
}

// A net that is wrapped for a group whose time is short, and its loss; nothing if the time was too
// short for that already.
struct Impatient {
  std::optional<Group> group;
  std::optional<DistributedDataParallel<Net>> ddp;
  torch::Tensor loss;
};
std::optional<Impatient> make_impatient(Group& all, std::chrono::milliseconds timeout) {
  std::optional<Impatient> made(std::in_place);
  try {
    made->group = make_group(all.store(), {.name = fmt::format("impatient/{}", timeout.count()),
                                           .rank = all.rank(),
                                           .size = all.size(),
                                           .timeout = timeout});
    made->ddp.emplace(make_net(), *made->group, DdpOptions{.broadcast_buffers = false});
    made->loss = loss_of((*made->ddp)(whole_batch(1)));
  } catch (const CommError&) {
    made.reset();
  }
  const torch::Tensor num_made = torch::full({1}, made ? 1 : 0, torch::kLong);
  all.all_reduce(num_made);
  return num_made.item<int64_t>() == all.size() ? std::move(made) : std::nullopt;
}

TEST(DdpError, ARankThatSkipsABackwardIsLateOrFoundOut) {
  run_ranks(2, [](Group& group) {
    Store store = group.store();
    std::optional<Impatient> impatient;
    for (std::chrono::milliseconds timeout = 500ms; !impatient; timeout *= 4) {
      ASSERT_LE(timeout, 40s);
      impatient = make_impatient(group, timeout);  // a busy host needs more time to come this far
    }
    if (group.rank() == 0) {
      expect_error<TimeoutError>([&] { impatient->loss.backward(); }, "rank 1");
      store.set("timed out", "1");
    } else {
      store.get("timed out");
    }
    // Going on as if nothing had happened: buckets of different steps, or another operation.
    Group other = make_group(
        store, {.name = "skips and goes on", .rank = group.rank(), .size = group.size()});
    Net second = make_net();
    DistributedDataParallel second_ddp(second, other, {.broadcast_buffers = false});
    EXPECT_THROW(
        {
          for (int step = 0; step < 3; ++step) {
            second->zero_grad();
            const auto step_loss = loss_of(second_ddp(whole_batch(1)));
            if (step != 1 || group.rank() == 0) {
              step_loss.backward();
            }
          }
          other.barrier();
        },
        CommError);
  });
}

TEST(DdpError, AnExceptionInOneRanksForwardIsToldToTheOthers) {
  run_ranks(3, [](Group& group) {
    struct Fragile : torch::nn::Module {
      Fragile() { layer = register_module("layer", torch::nn::Linear(4, 1)); }
      torch::Tensor forward(const torch::Tensor& x, bool fails) {
        if (fails) {
          throw std::runtime_error("bad picture");
        }
        return layer(x);
      }
      torch::nn::Linear layer{nullptr};
    };
    const auto train = [&] {
      Group own =
          make_group(group.store(),
                     {.name = "exception in forward", .rank = group.rank(), .size = group.size()});
      auto net = std::make_shared<Fragile>();
      DistributedDataParallel ddp(net, own);
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        ddp(torch::ones({1, 4}), group.rank() == 1 && step == 2).sum().backward();
      }
    };
    if (group.rank() == 1) {
      expect_error<std::runtime_error>(train, "bad picture");
    } else {
      expect_error<CommError>(train, "rank 1");
    }
    group.barrier();
  });
}

TEST(DdpError, AModelThatChangedAfterWrappingIsNamed) {
  run_ranks(2, [](Group& group) {
    const auto step = [&](DistributedDataParallel<Net>& ddp) {
      loss_of(ddp(whole_batch(1))).backward();
    };
    Net grown = make_net();
    DistributedDataParallel grown_ddp(grown, group);
    step(grown_ddp);
    grown->register_parameter("extra", torch::ones({2}));
    expect_error<UsageError>([&] { step(grown_ddp); }, "parameter 'extra' was added");

    Net thawed = make_net();
    thawed->spare->weight.set_requires_grad(false);
    DistributedDataParallel thawed_ddp(thawed, group);
    step(thawed_ddp);
    thawed->spare->weight.set_requires_grad(true);
    expect_error<UsageError>([&] { step(thawed_ddp); }, "parameter 'spare.weight' was");

    Net frozen = make_net();
    DistributedDataParallel frozen_ddp(frozen, group);
    step(frozen_ddp);
    frozen->zero_grad();
    frozen->first->bias.set_requires_grad(false);
    expect_error<UsageError>([&] { step(frozen_ddp); }, "'first.bias' of rank 0 got no gradient");
  });
}

TEST(DdpError, WhatIsNotSupportedIsRefused) {
  run_ranks(2, [](Group& group) {
    Net net = make_net();
    DistributedDataParallel ddp(net, group);
    expect_error<UsageError>(
        [&] {
          loss_of(ddp(whole_batch(1))).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
        },
        "create_graph");

    struct Rows : torch::nn::Module {
      Rows() { table = register_parameter("table", torch::randn({5, 2})); }
      torch::Tensor forward(const torch::Tensor& ids) {
        return torch::embedding(table, ids, -1, false, /*sparse=*/true);
      }
      torch::Tensor table;
    };
    DistributedDataParallel rows(std::make_shared<Rows>(), group);
    expect_error<UsageError>(
        [&] {
          rows(torch::tensor({1, 2})).sum().backward();
        },
        "parameter 'table' got a sparse gradient");
  });
}

TEST(DdpError, AForwardThatGoesRoundTheWrapperIsFoundWhereItMatters) {
  run_ranks(2, [](Group& group) {
    Net net = make_net();  // has a buffer
    DistributedDataParallel ddp(net, group);
    expect_error<UsageError>([&] { loss_of(net(whole_batch(1))).backward(); },
                             "write ddp(input) instead of model(input)");
    auto plain = torch::nn::Linear(4, 1);  // has none
    DistributedDataParallel plain_ddp(plain, group);
    plain(torch::full({1, 4}, group.rank() + 1.0f)).sum().backward();
    EXPECT_TRUE(same_on_all_ranks(group, plain->weight.grad()));
  });
}

TEST(DdpError, WrongOptionsAreNamed) {
  const auto wrap = [](DdpOptions options) {
    const DistributedDataParallel ddp(make_net(), make_single_group(), std::move(options));
  };
  expect_error<UsageError>([&] { wrap({.bucket_bytes = -1}); }, "bucket_bytes = -1");
  expect_error<UsageError>([&] { wrap({.first_bucket_bytes = 0}); }, "first_bucket_bytes = 0");
  expect_error<UsageError>([&] { wrap({.verify_every = -5}); }, "verify_every = -5");
  auto frozen = std::make_shared<torch::nn::LinearImpl>(2, 2);
  for (auto& parameter : frozen->parameters()) {
    parameter.set_requires_grad(false);
  }
  expect_error<UsageError>([&] { DistributedDataParallel(frozen, make_single_group()); },
                           "is everything frozen?");
}

}  // namespace
}  // namespace lockstep

// Post-local SGD: the hook that stops averaging, and the averager of models.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/ddp/local_sgd.h>

#include "ddp/hook_support.h"
#include "support/fleet.h"
#include "support/refusal.h"

namespace lockstep {
namespace {

using test::refusal;
using ::testing::HasSubstr;
using testing_support::run_ranks;

TEST(LocalSgd, AveragesGradientsUntilStartStepAndThenLeavesThem) {
  for (const int world : {1, 2, 3, 4}) {
    run_ranks(world, [](Group& group) {
      const auto log = std::make_shared<SentLog>();
      Group counting = counting_group(group, log);
      const Parameters parameters = make_parameters({{4, 3}, {5}});
      const auto buckets = make_buckets(parameters, {{1}, {0}}, group);
      const auto hook = local_sgd({.start_step = 2});
      for (int step = 0; step < 4; ++step) {
        fill(buckets, parameters, step, group.rank());
        run_hook(*hook, buckets, counting);
        const auto found = results(buckets, parameters);
        for (size_t i = 0; i < found.size(); ++i) {
          const at::IntArrayRef sizes = found[i].sizes();
          EXPECT_TRUE(step < 2
                          ? found[i].allclose(average_at(sizes, group.size(), {0, step, i}), 1e-12)
                          : found[i].equal(gradient_at(sizes, {group.rank(), step, i})));
        }
      }
      EXPECT_EQ(log->all_reduces.size(), 4U) << "two buckets in each of two steps";
    });
  }
}

TEST(LocalSgd, ASubgroupGoesOnAveragingAmongItself) {
  run_ranks(4, [](Group& group) {
    const Parameters parameters = make_parameters({{6}});
    const auto buckets = make_buckets(parameters, {{0}}, group);
    const auto hook =
        local_sgd({.start_step = 0, .subgroup = group.split(group.rank() / 2, group.rank())});
    fill(buckets, parameters, 3, group.rank());
    run_hook(*hook, buckets, group);
    const int first = group.rank() / 2 * 2;
    const at::Tensor expected =
        (gradient_at({6}, {first, 3, 0}) + gradient_at({6}, {first + 1, 3, 0})) / 2;
    EXPECT_TRUE(results(buckets, parameters)[0].allclose(expected, 1e-12));
  });
}

TEST(LocalSgd, ARankThatHasJustBegunTakesTheCountOfTheOthers) {
  run_ranks(3, [](Group& group) {
    const Parameters parameters = make_parameters({{6}});
    const auto hook = local_sgd({.start_step = 1});
    Group before = group.split(group.rank() == 2 ? -1 : 0);
    if (group.rank() != 2) {
      const auto buckets = make_buckets(parameters, {{0}}, before);
      run_hook(*hook, buckets, before);
    }
    const auto buckets = make_buckets(parameters, {{0}}, group);
    fill(buckets, parameters, 1, group.rank());
    run_hook(*hook, buckets, group);  // otherwise only rank 2 would average, and wait
    EXPECT_TRUE(results(buckets, parameters)[0].equal(gradient_at({6}, {group.rank(), 1, 0})));
  });
}

TEST(LocalSgd, RefusesNegativeSteps) {
  EXPECT_THAT(refusal([] { local_sgd({.start_step = -1}); }),
              HasSubstr("start_step = -1 must not be negative"));
}

std::vector<at::Tensor> tensors_of(const Parameters& parameters) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& tensor : parameters.tensors) {
    tensors.push_back(tensor.clone().set_requires_grad(true));
  }
  return tensors;
}

void set(const std::vector<at::Tensor>& tensors, int step, int rank) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].copy_(gradient_at(tensors[i].sizes(), {rank, step, i}));
  }
}

TEST(PeriodicModelAverager, AveragesEveryPeriodAfterTheWarmup) {
  for (const int world : {1, 2, 3, 4}) {
    run_ranks(world, [](Group& group) {
      const std::vector<at::Tensor> tensors = tensors_of(make_parameters({{4, 3}, {5}, {}}));
      PeriodicModelAverager averager(group, {.period = 3, .warmup_steps = 2});
      for (int step = 0; step < 10; ++step) {
        set(tensors, step, group.rank());
        const bool is_due = step == 2 || step == 5 || step == 8;
        EXPECT_EQ(averager.average(tensors), is_due) << "step " << step;
        for (size_t i = 0; i < tensors.size(); ++i) {
          const at::IntArrayRef sizes = tensors[i].sizes();
          EXPECT_TRUE(
              is_due ? tensors[i].allclose(average_at(sizes, group.size(), {0, step, i}), 1e-12)
                     : tensors[i].equal(gradient_at(sizes, {group.rank(), step, i})));
          EXPECT_TRUE(!is_due || same_on_all_ranks(group, tensors[i]));
        }
      }
    });
  }
}

TEST(PeriodicModelAverager, OneAllReducePerTypeInMemoryMadeOnce) {
  run_ranks(2, [](Group& group) {
    const auto log = std::make_shared<SentLog>();
    PeriodicModelAverager averager(counting_group(group, log), {.period = 2});
    std::vector<at::Tensor> tensors = tensors_of(make_parameters({{4, 3}, {5}}, at::kFloat));
    tensors.push_back(at::zeros({7}, at::kDouble).set_requires_grad(true));
    tensors.push_back(tensors[0]);                                            // tied
    tensors.push_back(at::full({2}, group.rank() + 1.0));                     // frozen
    tensors.push_back(at::zeros({6, 2}).t().set_requires_grad(true));         // not contiguous
    tensors.push_back(at::zeros({0, 3}, at::kHalf).set_requires_grad(true));  // nothing to send
    for (int step = 0; step < 5; ++step) {
      set({tensors[0], tensors[1], tensors[2], tensors[5]}, step, group.rank());
      averager.average(tensors);
    }
    ASSERT_EQ(log->all_reduces.size(), 6U);
    EXPECT_EQ(log->all_reduces[0].type, at::kFloat);
    EXPECT_EQ(log->all_reduces[0].numel, 12 + 5 + 12);
    EXPECT_EQ(log->all_reduces[1].type, at::kDouble);
    EXPECT_EQ(log->all_reduces[1].numel, 7);
    EXPECT_EQ(log->allocations, (std::vector<int64_t>{29 * 4, 7 * 8}));
    EXPECT_EQ(tensors[4][0].item<float>(), group.rank() + 1.0F) << "frozen: left alone";
    EXPECT_TRUE(tensors[5].to(at::kDouble).allclose(average_at({2, 6}, 2, {0, 4, 3}), 0, 1e-6));
    EXPECT_TRUE(same_on_all_ranks(group, tensors[5]));
  });
}

// Each rank fits the same line to points of its own; together they find it.
TEST(PeriodicModelAverager, ModelsThatStepAloneAndMeetLearnAsOne) {
  run_ranks(3, [](Group& group) {
    torch::manual_seed(0);
    torch::nn::Linear model(2, 1);
    model->to(torch::kDouble);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    PeriodicModelAverager averager(group, {.period = 4});
    const at::Tensor x =
        gradient_at({16, 2}, {group.rank(), 0, 0}) + 0.2 * gradient_at({16, 2}, {0, 1, 4});
    const at::Tensor y = x.matmul(at::tensor({2.0, -1.0}, at::kDouble)).unsqueeze(1) + 0.5;
    for (int step = 0; step < 801; ++step) {
      optimizer.zero_grad();
      torch::mse_loss(model(x), y).backward();
      optimizer.step();
      averager.average(*model);
    }
    EXPECT_TRUE(same_on_all_ranks(group, model->weight));
    EXPECT_TRUE(model->weight[0].allclose(at::tensor({2.0, -1.0}, at::kDouble), 0, 0.02))
        << model->weight;
    EXPECT_NEAR(model->bias.item<double>(), 0.5, 0.02);
  });
}

TEST(PeriodicModelAverager, GoesOnInAnotherGroupFromTheHighestCount) {
  run_ranks(2, [](Group& group) {
    const std::vector<at::Tensor> tensors = tensors_of(make_parameters({{3}}));
    PeriodicModelAverager averager(group.split(-1), {.period = 3});
    for (int step = 0; step < 2 * group.rank(); ++step) {
      averager.average(tensors);  // alone: 0 calls on rank 0, 2 on rank 1
    }
    averager.rebind(group);
    set(tensors, 0, group.rank());
    EXPECT_FALSE(averager.average(tensors)) << "the third call";
    EXPECT_TRUE(averager.average(tensors)) << "the fourth";
    EXPECT_TRUE(same_on_all_ranks(group, tensors[0]));
  });
}

TEST(PeriodicModelAverager, BadUseGetsASentence) {
  const Group group = make_single_group();
  EXPECT_THAT(refusal([&] { PeriodicModelAverager(group, {.period = 0}); }),
              HasSubstr("period = 0 must be at least 1"));
  EXPECT_THAT(refusal([&] { PeriodicModelAverager(group, {.warmup_steps = -2}); }),
              HasSubstr("warmup_steps = -2 must not be negative"));
  PeriodicModelAverager averager(group);
  const auto average = [&](const at::Tensor& tensor) {
    return refusal([&] { averager.average(std::vector<at::Tensor>{tensor}); });
  };
  EXPECT_THAT(average(at::ones({2})), HasSubstr("none of 1 parameters requires a gradient"));
  EXPECT_THAT(average(at::Tensor()), HasSubstr("parameter 0 is an undefined tensor"));
  EXPECT_THAT(average(at::ones({2}, at::kLong)), HasSubstr("parameter 0 is Long on cpu, dense"));
  EXPECT_THAT(average(at::ones({2}).to_sparse()), HasSubstr("sparse; only dense floating"));
}

}  // namespace
}  // namespace lockstep

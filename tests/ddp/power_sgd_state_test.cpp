// What power_sgd remembers, and what must not harm it: new buckets, new groups, gradients that are
// zero, of low rank or not finite, layouts, failed steps; and the golden made by PyTorch.

#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/ddp/power_sgd.h>

#include "ddp/hook_support.h"
#include "ddp/power_sgd_hook.h"
#include "support/fleet.h"
#include "support/paths.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using testing_support::run_ranks;

constexpr int64_t kStart = 2;
const std::vector<std::vector<int64_t>> kSizes = {{12, 16}, {7}, {8, 4, 5}, {9, 20}};
const PowerSgdOptions kOptions{.rank = 2, .start_step = kStart};

void run_steps(CommHook& hook, const Parameters& parameters, const Split& split, Group& group,
               int begin, int end) {
  const auto buckets = make_buckets(parameters, split, group);
  for (int step = begin; step < end; ++step) {
    fill(buckets, parameters, step, group.rank());
    run_hook(hook, buckets, group);
  }
}

TEST(PowerSgdState, BelongsToTheParameterNotToTheBucket) {
  run_ranks(3, [](Group& group) {
    const Parameters parameters = make_parameters(kSizes);
    const auto steady = power_sgd(kOptions);
    const auto moved = power_sgd(kOptions);
    const Split first = {{3}, {2, 1, 0}};
    const Split second = {{0, 3}, {2}, {1}};
    run_steps(*steady, parameters, first, group, 0, 5);
    run_steps(*moved, parameters, first, group, 0, 5);
    const auto expected = make_buckets(parameters, first, group);
    const auto found = make_buckets(parameters, second, group);
    for (int step = 5; step < 7; ++step) {
      fill(expected, parameters, step, group.rank());
      fill(found, parameters, step, group.rank());
      run_hook(*steady, expected, group);
      run_hook(*moved, found, group);
      for (size_t i = 0; i < kSizes.size(); ++i) {
        EXPECT_TRUE(
            results(found, parameters)[i].allclose(results(expected, parameters)[i], 0, 1e-10))
            << "step " << step << ", parameter " << i;
      }
      EXPECT_TRUE(same_on_all_ranks(group, found));
    }
  });
}

TEST(PowerSgdState, ZeroGradientsStayZero) {
  run_ranks(2, [](Group& group) {
    for (const double epsilon : {0.0, 1e-8}) {
      const Parameters parameters = make_parameters(kSizes, at::kFloat);
      const auto buckets = make_buckets(parameters, {{0, 1, 2, 3}}, group);
      const auto hook =
          power_sgd({.rank = 2, .start_step = kStart, .orthogonalization_epsilon = epsilon});
      for (int step = 0; step < 4; ++step) {
        buckets[0].buffer.zero_();
        run_hook(*hook, buckets, group);
        EXPECT_EQ(buckets[0].buffer.count_nonzero().item<int64_t>(), 0);
      }
      fill(buckets, parameters, 4, group.rank());
      run_hook(*hook, buckets, group);
      EXPECT_TRUE(buckets[0].buffer.isfinite().all().item<bool>());
      EXPECT_GT(buckets[0].buffer.norm().item<double>(), 1);
    }
  });
}

// Gradients of rank 1 leave the second direction without meaning; it comes back when it is needed.
TEST(PowerSgdState, ALowRankGradientDoesNotLoseADirectionForGood) {
  run_ranks(2, [](Group& group) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const Parameters parameters = make_parameters({{16, 24}}, type);
      const auto buckets = make_buckets(parameters, {{0}}, group);
      const auto hook = power_sgd({.rank = 2, .start_step = kStart});
      const double tolerance = type == at::kFloat ? 1e-4 : 1e-10;
      const at::Tensor& gradient = buckets[0].gradients[0];
      const at::Tensor column = gradient_at({16, 1}, {0, 0, 0});
      const at::Tensor row = gradient_at({1, 24}, {0, 0, 1});
      const at::Tensor other = gradient_at({16, 1}, {0, 1, 2}) * gradient_at({1, 24}, {0, 0, 3});
      for (int step = 0; step < 20; ++step) {
        const at::Tensor wanted = column * row + (step < 10 ? 0.0 : 1.0) * other;
        gradient.copy_(wanted * (group.rank() + 0.5));
        run_hook(*hook, buckets, group);
        EXPECT_TRUE(same_on_all_ranks(group, gradient));
        if (step < 10 || step > 12) {
          EXPECT_TRUE(gradient.to(at::kDouble).allclose(wanted, 0, tolerance)) << "step " << step;
        }
      }
    }
  });
}

TEST(PowerSgdState, AGradientThatIsNotFiniteShowsEverywhereAndIsForgotten) {
  run_ranks(3, [](Group& group) {
    for (const double bad :
         {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      const Parameters parameters = make_parameters(kSizes, at::kFloat);
      const auto buckets = make_buckets(parameters, {{3, 1}, {2, 0}}, group);
      const auto hook = power_sgd(kOptions);
      for (int step = 0; step < 8; ++step) {
        fill(buckets, parameters, step, group.rank());
        if (step == 4 && group.rank() == 1) {
          buckets[1].gradients[1][3][2] = bad;
        }
        run_hook(*hook, buckets, group);
        const auto found = results(buckets, parameters);
        EXPECT_EQ(found[0].isfinite().all().item<bool>(), step != 4) << "step " << step;
        for (size_t i = 1; i < kSizes.size(); ++i) {
          EXPECT_TRUE(found[i].isfinite().all().item<bool>()) << "step " << step;
        }
      }
    }
  });
}

TEST(PowerSgdState, LayoutsOtherThanContiguousAreCompressedWhereTheyLie) {
  run_ranks(2, [](Group& group) {
    Parameters parameters = make_parameters({{6, 5, 3, 3}, {8, 20}});
    parameters.tensors[0] = parameters.tensors[0].contiguous(at::MemoryFormat::ChannelsLast);
    parameters.tensors[1] = at::zeros({20, 8}, at::kDouble).t();
    const auto buckets = make_buckets(parameters, {{0, 1}}, group);
    const auto log = std::make_shared<SentLog>();
    Group counting = counting_group(group, log);
    const auto hook = power_sgd({.rank = 100, .start_step = kStart, .min_compression_rate = 0});
    for (int step = 0; step < 4; ++step) {
      fill(buckets, parameters, step, group.rank());
      run_hook(*hook, buckets, counting);
      for (size_t i = 0; i < 2; ++i) {
        const at::Tensor& found = buckets[0].gradients[i];
        EXPECT_TRUE(found.allclose(average_at(found.sizes(), 2, {0, step, i}), 0, 1e-11));
      }
    }
    EXPECT_EQ(log->all_reduces.back().numel, 6 * 45 + 8 * 8);
  });
}

TEST(PowerSgdState, BucketsOfSmallTypesAreAveraged) {
  run_ranks(2, [](Group& group) {
    const Parameters parameters = make_parameters({{12, 16}}, at::kBFloat16);
    const auto buckets = make_buckets(parameters, {{0}}, group);
    const auto plain = make_buckets(parameters, {{0}}, group);
    const auto hook = power_sgd(kOptions);
    for (int step = 0; step < 4; ++step) {
      fill(buckets, parameters, step, group.rank());
      fill(plain, parameters, step, group.rank());
      run_hook(*hook, buckets, group);
      run_hook(*allreduce_hook(), plain, group);
      EXPECT_TRUE(buckets[0].buffer.equal(plain[0].buffer));
    }
  });
}

// The first bucket is started and then backward throws, on all ranks alike: the group is well.
TEST(PowerSgdState, AStepThatWasNotFinishedLeavesNoTrace) {
  run_ranks(2, [](Group& group) {
    const Parameters parameters = make_parameters(kSizes);
    const Split split = {{3}, {2, 1, 0}};
    const auto hook = power_sgd(kOptions);
    const auto steady = power_sgd(kOptions);
    run_steps(*hook, parameters, split, group, 0, 4);
    run_steps(*steady, parameters, split, group, 0, 4);
    const auto buckets = make_buckets(parameters, split, group);
    fill(buckets, parameters, 4, group.rank());
    hook->start(buckets[0], group).wait();

    const auto expected = make_buckets(parameters, split, group);
    fill(buckets, parameters, 4, group.rank());
    fill(expected, parameters, 4, group.rank());
    run_hook(*hook, buckets, group);
    run_hook(*steady, expected, group);
    for (size_t i = 0; i < buckets.size(); ++i) {
      EXPECT_TRUE(buckets[i].buffer.allclose(expected[i].buffer, 0, 1e-10));
    }
  });
}

TEST(PowerSgdState, ARankThatHasJustBegunCompressesWithTheOthers) {
  run_ranks(3, [](Group& group) {
    const Parameters parameters = make_parameters(kSizes, at::kFloat);
    const auto hook = power_sgd(kOptions);
    Group before = group.split(group.rank() == 0 ? -1 : 0);
    if (group.rank() != 0) {
      run_steps(*hook, parameters, {{0, 1, 2, 3}}, before, 0, 5);
    }
    const auto buckets = make_buckets(parameters, {{3, 2}, {1, 0}}, group);
    const auto log = std::make_shared<SentLog>();
    Group counting = counting_group(group, log);
    for (int step = 5; step < 8; ++step) {
      fill(buckets, parameters, step, group.rank());
      run_hook(*hook, buckets, counting);
      EXPECT_TRUE(same_on_all_ranks(group, buckets));
    }
    EXPECT_EQ(log->all_reduces.size(), 3 * 4U) << "Ps and Qs of two buckets, in each step";
  });
}

TEST(PowerSgdState, AGroupOfOneAddsWhatWasLeftOutAndStaysExact) {
  run_ranks(2, [](Group& group) {
    const Parameters parameters = make_parameters({{12, 16}});
    const auto buckets = make_buckets(parameters, {{0}}, group);
    const auto hook = power_sgd({.start_step = kStart});
    const at::Tensor& gradient = buckets[0].gradients[0];
    at::Tensor sum = at::zeros({12, 16}, at::kDouble);  // of what came in, minus what was applied
    for (int step = 0; step < 5; ++step) {
      fill(buckets, parameters, step, group.rank());
      if (step >= kStart) {
        sum += gradient;
      }
      run_hook(*hook, buckets, group);
      if (step >= kStart) {
        sum -= gradient;
      }
    }
    Group alone = group.split(-1);
    fill(buckets, parameters, 5, group.rank());
    const at::Tensor mine = gradient.clone();
    run_hook(*hook, buckets, alone);
    EXPECT_TRUE(gradient.allclose(mine + sum, 0, 1e-10));
    gradient.copy_(mine);
    run_hook(*hook, buckets, alone);
    EXPECT_TRUE(gradient.equal(mine));
  });
}

// The formula of golden/make_power_sgd.py.
void first_q(const at::Tensor& rows, const ddp::RowSeed& /*seed*/) {
  if (rows.count_nonzero().item<int64_t>() > 0) {
    return;
  }
  const at::Tensor i = at::arange(rows.size(1), at::kDouble).view({1, -1});
  const at::Tensor j = at::arange(rows.size(0), at::kDouble).view({-1, 1});
  rows.copy_((1 + 0.9 * i * (j + 1) + 0.1 * static_cast<double>(rows.size(1))).sin());
}

TEST(PowerSgdState, EqualsPyTorch) {
  run_ranks(3, [](Group& group) {
    std::map<std::pair<int, size_t>, std::vector<double>> golden;  // by step and parameter
    std::ifstream file(testing_support::in_tree("tests/ddp/golden/power_sgd.txt"));
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::pair<int, size_t> key;
      words >> key.first >> key.second;
      for (double value = 0; words >> value;) {
        golden[key].push_back(value);
      }
    }
    ASSERT_EQ(golden.size(), 16U);
    const Parameters parameters = make_parameters({{8, 10}, {5}, {6, 2, 4}, {3, 3}});
    const auto buckets = make_buckets(parameters, {{3, 2}, {1, 0}}, group);
    const auto hook = ddp::make_power_sgd(
        {.rank = 2, .start_step = kStart, .min_compression_rate = 1.5}, first_q);
    for (int step = 0; step < 8; ++step) {
      fill(buckets, parameters, step, group.rank());
      run_hook(*hook, buckets, group);
      const auto found = results(buckets, parameters);
      for (size_t i = 0; i < found.size() && golden.count({step, i}) > 0; ++i) {
        const at::Tensor expected = at::tensor(golden[{step, i}], at::kDouble);
        EXPECT_TRUE(found[i].view({-1}).allclose(expected, 0, 1e-9))
            << "step " << step << ", parameter " << i << ": "
            << (found[i].view({-1}) - expected).abs().max().item<double>();
      }
    }
  });
}

TEST(PowerSgdState, BadOptionsGetASentence) {
  const auto error_of = [](const PowerSgdOptions& options) -> std::string {
    try {
      power_sgd(options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(error_of({.rank = 0}), HasSubstr("rank = 0 must be at least 1"));
  EXPECT_THAT(error_of({.start_step = 1}), HasSubstr("must be at least 2 with use_error_feedback"));
  EXPECT_THAT(error_of({.start_step = 1, .use_error_feedback = false}),
              HasSubstr("must be at least 2 with warm_start"));
  EXPECT_THAT(error_of({.start_step = -1, .use_error_feedback = false, .warm_start = false}),
              HasSubstr("start_step = -1 must not be negative"));
  EXPECT_THAT(error_of({.min_compression_rate = -1}), HasSubstr("min_compression_rate = -1"));
  EXPECT_THAT(error_of({.min_compression_rate = std::numeric_limits<double>::quiet_NaN()}),
              HasSubstr("min_compression_rate = nan"));
  EXPECT_THAT(error_of({.orthogonalization_epsilon = -1e-8}),
              HasSubstr("orthogonalization_epsilon = -1e-08"));
  EXPECT_EQ(error_of({.start_step = 0, .use_error_feedback = false, .warm_start = false}),
            "accepted");
}

TEST(PowerSgdState, BucketsFinishInTheOrderInWhichTheyStart) {
  Group group = make_single_group();
  const Parameters parameters = make_parameters({{3}, {4}});
  const auto buckets = make_buckets(parameters, {{0}, {1}}, group);
  const auto hook = power_sgd();
  EXPECT_THROW(hook->finish(buckets[0], group), InternalError);
  hook->start(buckets[0], group);
  hook->start(buckets[1], group);
  EXPECT_THROW(hook->finish(buckets[1], group), InternalError);
}

TEST(LowRank, RowsBecomeOrthonormalAndDependentOnesZero) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor rows = at::zeros({5, 37}, type);
    ddp::fill_empty_rows(rows, {.seed = 3, .step = 4, .name = "layer"});
    rows[1].copy_(rows[0] * 3);
    rows[3].copy_(rows[2] * 1e3 + rows[4] * 1e-3);  // nearly dependent
    EXPECT_TRUE(ddp::orthonormalize_rows(rows, 0));
    EXPECT_LT((rows[1].norm().item<double>() - 1) * rows[1].norm().item<double>(), 1e-5);
    at::Tensor product = rows.matmul(rows.t());
    product[1][1] = 1;  // exactly dependent: zero, or a direction of its own
    EXPECT_TRUE(product.allclose(at::eye(5, type), 0, type == at::kFloat ? 1e-6 : 1e-14))
        << product;
  }
}

TEST(LowRank, DrawsDependOnSeedStepAndName) {
  const auto draw = [](const ddp::RowSeed& seed) {
    const at::Tensor rows = at::zeros({2, 1000}, at::kDouble);
    ddp::fill_empty_rows(rows, seed);
    return rows;
  };
  const at::Tensor rows = draw({1, 2, "a"});
  EXPECT_TRUE(rows.equal(draw({1, 2, "a"})));
  EXPECT_FALSE(rows.equal(draw({2, 2, "a"})));
  EXPECT_FALSE(rows.equal(draw({1, 3, "a"})));
  EXPECT_FALSE(rows.equal(draw({1, 2, "b"})));
  EXPECT_NEAR(rows.mean().item<double>(), 0, 0.1);
  EXPECT_NEAR(rows.std().item<double>(), 1, 0.1);
  const at::Tensor kept = rows.clone();
  ddp::fill_empty_rows(rows, {9, 9, "other"});
  EXPECT_TRUE(rows.equal(kept)) << "only empty rows are filled";
}

}  // namespace
}  // namespace lockstep

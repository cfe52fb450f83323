// power_sgd against a straightforward implementation that sees all ranks' gradients, and what it
// promises: equal bits, few elements, nothing lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/ddp/power_sgd.h>

#include "ddp/hook_support.h"
#include "ddp/low_rank.h"
#include "support/fleet.h"

namespace lockstep {
namespace {

using testing_support::run_ranks;

constexpr int64_t kStart = 2;  // plain steps at the beginning
const std::vector<std::vector<int64_t>> kSizes = {{12, 16}, {7}, {8, 4, 5}, {3, 3}, {}, {9, 20}};
const Split kSplit = {{5, 4}, {3}, {2, 1, 0}};

// The method as the paper has it, for one parameter and all ranks at once.
class Oracle {
 public:
  Oracle(PowerSgdOptions options, std::string name) : options_(options), name_(std::move(name)) {}

  at::Tensor step(std::vector<at::Tensor> gradients, int64_t step) {
    const auto size = static_cast<double>(gradients.size());
    const at::IntArrayRef sizes = gradients[0].sizes();
    at::Tensor average = at::stack(gradients).mean(0);
    if (gradients[0].dim() < 2 || step < options_.start_step) {
      return average;
    }
    const int64_t rows = sizes[0];
    const int64_t columns = average.numel() / rows;
    const int64_t rank = std::min({options_.rank, rows, columns});
    if (static_cast<double>((rows + columns) * rank) * options_.min_compression_rate >=
        static_cast<double>(rows * columns)) {
      return average;
    }
    errors_.resize(gradients.size(), at::zeros({rows, columns}, average.options()));
    if (!options_.warm_start || !q_.defined()) {
      const at::Tensor q_rows = at::zeros({rank, columns}, average.options());
      ddp::fill_empty_rows(q_rows, {options_.seed, step, name_});
      q_ = q_rows.t();
    }
    q_ = orthonormal(q_);
    at::Tensor p = at::zeros({rows, rank}, average.options());
    for (size_t i = 0; i < gradients.size(); ++i) {
      gradients[i] = gradients[i].reshape({rows, columns}) + errors_[i];
      p += gradients[i].matmul(q_);
    }
    p = orthonormal(p);
    q_ = at::stack(gradients).sum(0).t().matmul(p) / size;
    const at::Tensor product = p.matmul(q_.t());
    for (size_t i = 0; i < gradients.size() && options_.use_error_feedback; ++i) {
      errors_[i] = gradients[i] - product;
    }
    return product.view(sizes);
  }

 private:
  static at::Tensor orthonormal(const at::Tensor& x) { return std::get<0>(at::linalg_qr(x)); }

  PowerSgdOptions options_;
  std::string name_;
  at::Tensor q_;
  std::vector<at::Tensor> errors_;
};

void compare_with_oracle(Group& group, const PowerSgdOptions& options) {
  const Parameters parameters = make_parameters(kSizes);
  const auto buckets = make_buckets(parameters, kSplit, group);
  const auto hook = power_sgd(options);
  std::vector<Oracle> oracles;
  for (const std::string& name : parameters.names) {
    oracles.emplace_back(options, name);
  }
  for (int step = 0; step < 7; ++step) {
    fill(buckets, parameters, step, group.rank());
    run_hook(*hook, buckets, group);
    EXPECT_TRUE(same_on_all_ranks(group, buckets));
    EXPECT_TRUE(gaps_are_zero(buckets));
    const auto found = results(buckets, parameters);
    for (size_t i = 0; i < found.size(); ++i) {
      std::vector<at::Tensor> gradients;
      for (int rank = 0; rank < group.size(); ++rank) {
        gradients.push_back(gradient_at(kSizes[i], {rank, step, i}));
      }
      const at::Tensor expected = oracles[i].step(gradients, step);
      EXPECT_TRUE(found[i].allclose(expected, 0, 1e-9))
          << "step " << step << ", parameter " << i << ": "
          << (found[i] - expected).abs().max().item<double>();
    }
  }
}

TEST(PowerSgd, DoesWhatThePaperSays) {
  for (const int world : {2, 3, 4}) {
    run_ranks(world, [](Group& group) {
      compare_with_oracle(group, {.rank = 1, .start_step = kStart});
      compare_with_oracle(group, {.rank = 3, .start_step = kStart, .min_compression_rate = 1});
      compare_with_oracle(group, {.start_step = kStart, .warm_start = false, .seed = 7});
      compare_with_oracle(group, {.rank = 2, .start_step = kStart, .use_error_feedback = false});
      compare_with_oracle(
          group, {.rank = 2, .start_step = 0, .use_error_feedback = false, .warm_start = false});
    });
  }
}

TEST(PowerSgd, DoesItOverEveryBackend) {
  for (const testing_support::Setting& setting : testing_support::kEveryBackend) {
    run_ranks(4,
              [](Group& group) { compare_with_oracle(group, {.rank = 2, .start_step = kStart}); },
              {.nodes = setting.nodes, .backend = setting.backend});
  }
}

TEST(PowerSgd, AveragesBeforeItStartsLikeNoHook) {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [](Group& group) {
      const Parameters parameters = make_parameters(kSizes, at::kFloat);
      const auto buckets = make_buckets(parameters, kSplit, group);
      const auto plain = make_buckets(parameters, kSplit, group);
      const auto hook = power_sgd({.start_step = 3});
      for (int step = 0; step < 3; ++step) {
        fill(buckets, parameters, step, group.rank());
        fill(plain, parameters, step, group.rank());
        run_hook(*hook, buckets, group);
        run_hook(*allreduce_hook(), plain, group);
        for (size_t i = 0; i < buckets.size(); ++i) {
          EXPECT_TRUE(buckets[i].buffer.equal(plain[i].buffer));
        }
      }
    });
  }
}

TEST(PowerSgd, FullRankIsTheAverage) {
  for (const int world : {1, 2, 3, 4}) {
    run_ranks(world, [](Group& group) {
      for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
        const Parameters parameters = make_parameters(kSizes, type);
        const auto buckets = make_buckets(parameters, kSplit, group);
        const auto hook =
            power_sgd({.rank = 1000, .start_step = kStart, .min_compression_rate = 0});
        for (int step = 0; step < 5; ++step) {
          fill(buckets, parameters, step, group.rank());
          run_hook(*hook, buckets, group);
          EXPECT_TRUE(same_on_all_ranks(group, buckets));
          const auto found = results(buckets, parameters);
          for (size_t i = 0; i < found.size(); ++i) {
            const at::Tensor average = average_at(kSizes[i], group.size(), {0, step, i});
            EXPECT_TRUE(
                found[i].to(at::kDouble).allclose(average, 0, type == at::kFloat ? 2e-5 : 1e-12))
                << "step " << step << ", parameter " << i << ": "
                << (found[i] - average).abs().max().item<double>();
          }
        }
      }
    });
  }
}

// Relative distance of what was applied in `steps` steps from what should have been.
double left_out(Group& group, const PowerSgdOptions& options, int steps) {
  const Parameters parameters = make_parameters({{16, 12}}, at::kFloat);
  const auto buckets = make_buckets(parameters, {{0}}, group);
  const auto hook = power_sgd(options);
  at::Tensor applied = at::zeros({16, 12}, at::kDouble);
  at::Tensor wanted = at::zeros({16, 12}, at::kDouble);
  for (int step = 0; step < steps; ++step) {
    // No single direction: the part that changes from step to step is small.
    const at::Tensor noise = 0.1 * gradient_at({16, 12}, {group.rank(), step, 1});
    const at::Tensor steady = gradient_at({16, 12}, {group.rank(), 0, 2}).square();
    buckets[0].gradients[0].copy_(steady + noise);
    for (int rank = 0; rank < group.size(); ++rank) {
      wanted += (gradient_at({16, 12}, {rank, 0, 2}).square() +
                 0.1 * gradient_at({16, 12}, {rank, step, 1})) /
                group.size();
    }
    run_hook(*hook, buckets, group);
    applied += buckets[0].gradients[0];
  }
  return ((applied - wanted).norm() / wanted.norm()).item<double>();
}

TEST(PowerSgd, ErrorFeedbackLosesNothingInTheLongRun) {
  for (const int world : {2, 3}) {
    run_ranks(world, [](Group& group) {
      const PowerSgdOptions options{.start_step = kStart};
      const double soon = left_out(group, options, 10);
      const double late = left_out(group, options, 160);
      EXPECT_LT(late, soon / 8) << "in 16 times the steps: what is left out does not grow";
      PowerSgdOptions forgetful = options;
      forgetful.use_error_feedback = false;
      EXPECT_GT(left_out(group, forgetful, 160), 3 * late);
    });
  }
}

TEST(PowerSgd, AWarmStartTurnsToTheBestApproximation) {
  run_ranks(2, [](Group& group) {
    const Parameters parameters = make_parameters({{20, 14}});
    const auto buckets = make_buckets(parameters, {{0}}, group);
    const auto hook = power_sgd({.rank = 2, .start_step = kStart, .use_error_feedback = false});
    const at::Tensor mine = gradient_at({20, 14}, {group.rank(), 3, 1});
    for (int step = 0; step < 200; ++step) {
      buckets[0].gradients[0].copy_(mine);
      run_hook(*hook, buckets, group);
    }
    const auto [u, s, v] = at::linalg_svd(average_at({20, 14}, 2, {0, 3, 1}), false);
    const at::Tensor best =
        u.narrow(1, 0, 2).matmul(s.narrow(0, 0, 2).diag()).matmul(v.narrow(0, 0, 2));
    EXPECT_TRUE(buckets[0].gradients[0].allclose(best, 0, 1e-6)) << s;
  });
}

TEST(PowerSgd, SendsAsFewElementsAsPromised) {
  run_ranks(3, [](Group& group) {
    const auto log = std::make_shared<SentLog>();
    Group counting = counting_group(group, log);
    const Parameters parameters = make_parameters(kSizes, at::kFloat);
    const auto buckets = make_buckets(parameters, kSplit, group);
    const auto hook = power_sgd({.rank = 2, .start_step = kStart});
    for (int step = 0; step < 5; ++step) {
      fill(buckets, parameters, step, group.rank());
      log->all_reduces.clear();
      run_hook(*hook, buckets, counting);
    }
    // Bucket 0: (9, 20) as P and Q, one element whole. Bucket 1: nothing pays. Bucket 2: (12, 16)
    // and (8, 20) as P and Q, 7 elements whole. First the Ps in order, then the Qs.
    std::vector<int64_t> numels;
    for (const auto& sent : log->all_reduces) {
      EXPECT_EQ(sent.type, at::kFloat);
      numels.push_back(sent.numel);
    }
    EXPECT_EQ(numels, (std::vector<int64_t>{2 * 9 + 1, buckets[1].buffer.numel(),
                                            2 * 12 + 2 * 8 + 7, 2 * 20, 2 * 16 + 2 * 20}));
    EXPECT_EQ(log->allocations.size(), 2U) << "once for each bucket that is compressed";
  });
}

TEST(PowerSgd, TheSameSeedGivesTheSameBitsAnotherOneOthers) {
  run_ranks(2, [](Group& group) {
    const Parameters parameters = make_parameters(kSizes, at::kFloat);
    const auto buckets = make_buckets(parameters, kSplit, group);
    std::vector<at::Tensor> found;
    for (const uint64_t seed : {1, 1, 2}) {
      const auto hook = power_sgd({.start_step = kStart, .seed = seed});
      for (int step = 0; step < 4; ++step) {
        fill(buckets, parameters, step, group.rank());
        run_hook(*hook, buckets, group);
      }
      found.push_back(results(buckets, parameters)[0]);
    }
    EXPECT_TRUE(found[0].equal(found[1]));
    EXPECT_FALSE(found[0].equal(found[2]));
  });
}

}  // namespace
}  // namespace lockstep

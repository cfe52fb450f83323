// What a trainer finds wrong before its first step, and what it makes of odd tasks and scores.
#include <chrono>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <lockstep/base/error.h>
#include <lockstep/train/trainer.h>

#include "support/fleet.h"
#include "support/pretended_cores.h"
#include "support/temp_folder.h"
#include "train/train_state.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::rank_argument;
using testing_support::run_ranks;

std::shared_ptr<const Dataset> rows(int64_t num) {
  const at::Tensor input = at::arange(num * 2, at::kFloat).sin().reshape({num, 2});
  return make_dataset({input, at::arange(num, at::kLong).remainder(2)});
}

// A linear model; what it says of a batch is up to the test.
class LineTask : public TrainingTask {
 public:
  std::shared_ptr<torch::nn::Module> module() const override { return line_.ptr(); }
  TaskOutput forward(const Batch& batch) override {
    TaskOutput output = classify(line_(batch.input), batch.target);
    if (says_nothing) {
      output = {.loss = output.loss};
    }
    if (counts_nothing) {
      output = {.loss = output.loss, .num_counted = 0};
    }
    const bool is_judged = !line_->is_training();
    if (is_judged && num_judged++ < num_nan) {
      output.loss = at::full({}, std::nan(""));
    }
    if (!is_judged && overflows_above > 0) {
      output.loss = output.loss + Overflow::apply(output.loss, overflows_above);
    }
    return output;
  }

  bool says_nothing = false;
  bool counts_nothing = false;
  int num_nan = 0;             // first batches of evaluations
  double overflows_above = 0;  // a gradient of the loss

 private:
  struct Overflow : torch::autograd::Function<Overflow> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& loss,
                              double limit) {
      context->saved_data["limit"] = limit;
      return at::zeros_like(loss);
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list gradients) {
      const bool is_over = gradients[0].item<double>() > context->saved_data["limit"].toDouble();
      return {gradients[0] * (is_over ? INFINITY : 0.0), at::Tensor()};
    }
  };

  torch::nn::Linear line_{torch::nn::Linear(2, 2)};
  int num_judged = 0;
};

TrainResult run(LineTask& task, const TrainerOptions& options, TrainerData data,
                Group group = make_single_group()) {
  return Trainer(task, std::move(data), std::move(group), options).run();
}

TEST(TrainerChecks, RanksWithDifferentDataOrBatchesAreToldBeforeTheFirstStep) {
  run_ranks(3, [](Group& group) {
    const bool is_odd = group.rank() == 2;
    const auto refuses = [&](TrainerData data, TrainerOptions options, const char* reason) {
      LineTask task;
      EXPECT_THAT([&] { Trainer(task, data, group, options); },
                  ThrowsMessage<UsageError>(
                      AllOf(HasSubstr(reason), HasSubstr("the trainer deals the samples out"))));
    };
    const TrainerOptions options{.batch_size = 6};
    refuses({rows(is_odd ? 24 : 30), nullptr}, options,
            "rank 0 has 30 samples to train on, rank 2 has 24 samples to train on");
    refuses({rows(30), is_odd ? nullptr : rows(4)}, options,
            "rank 0 has 4 samples held out, rank 2 has no data held out");
    refuses({rows(30), nullptr}, {.batch_size = is_odd ? 3 : 6}, "rank 2 has batch_size = 3");
    refuses({rows(30), nullptr}, {.batch_size = 6, .lr = is_odd ? 0.5 : 0.25},
            "rank 2 has lr = 0.5");
    group.barrier();  // and the group still works
  });
}

TEST(TrainerChecks, HyperparametersOutOfRangeAreNamed) {
  const auto refuses = [](TrainerOptions options, const char* reason) {
    LineTask task;
    EXPECT_THAT(
        [&] {
          Trainer(task, {rows(64), nullptr}, make_single_group(), options);
        },
        ThrowsMessage<UsageError>(HasSubstr(reason)));
  };
  refuses({.lr = -1}, "lr = -1 is not in [0, 100]");
  refuses({.lr = std::nan("")}, "lr = nan");
  refuses({.weight_decay = -0.1}, "weight_decay = -0.1");
  refuses({.beta1 = 1}, "beta1 = 1 is not in [0, 1)");
  refuses({.beta2 = 1}, "beta2 = 1 is not in [0, 1)");
  refuses({.eps = 0}, "eps = 0 is not in (0, 1]");
  refuses({.momentum = 1}, "momentum = 1 is not in [0, 1)");
  refuses({.warmup_steps = -1}, "warmup_steps = -1");
  refuses({.min_lr_share = 2}, "min_lr_share = 2");
  refuses({.clip_norm = -1}, "clip_norm = -1");
  refuses({.ema_decay = 1}, "ema_decay = 1");
  refuses({.spike_factor = 0.5}, "spike_factor = 0.5 would leave out");
  refuses({.batch_size = 0}, "batch_size = 0");
  refuses({.accumulate = -1}, "accumulate = -1");
  refuses({.eval_every = -5}, "eval_every = -5");
  refuses({.log_every = 0}, "log_every = 0");
  refuses({.workers = -1}, "workers = -1");
  refuses({.epochs = 0}, "epochs = 0");
  refuses({.max_steps = -1}, "max_steps = -1");
  refuses({.max_time = std::chrono::seconds(-1)}, "max_time = -1");
  refuses({.early_stop = -1}, "early_stop = -1");
  refuses({.shards = -1}, "shards = -1");
  refuses({.threads = -1}, "threads = -1");
  refuses({.checkpoint_every = -1}, "checkpoint_every = -1");
  refuses({.max_bad_steps = -1}, "max_bad_steps = -1");
}

TEST(TrainerChecks, SettingsThatAnOwnOptimizerReplacesAreRefused) {
  const auto refuses = [](TrainerOptions options, const char* name) {
    options.make_optimizer = [](torch::nn::Module& module) {
      return std::make_unique<torch::optim::SGD>(module.parameters(), 0.1);
    };
    LineTask task;
    EXPECT_THAT(
        [&] {
          Trainer(task, {rows(64), nullptr}, make_single_group(), options);
        },
        ThrowsMessage<UsageError>(
            AllOf(HasSubstr(std::string(name) + " is set"), HasSubstr("beside make_optimizer"))));
  };
  refuses({.optimizer = OptimizerKind::Sgd}, "optimizer");
  refuses({.lr = 0.1}, "lr");
  refuses({.weight_decay = 0}, "weight_decay");
  refuses({.beta1 = 0.8}, "beta1");
  refuses({.beta2 = 0.99}, "beta2");
  refuses({.eps = 1e-6}, "eps");
  refuses({.momentum = 0}, "momentum");
  refuses({.groups = {{.name = "a", .pattern = "bias"}}}, "groups");
}

TEST(TrainerChecks, EvaluateWithoutHeldOutDataIsRefused) {
  LineTask task;
  Trainer trainer(task, {rows(64), nullptr}, make_single_group(), {});
  EXPECT_THAT([&] { trainer.evaluate(); },
              ThrowsMessage<UsageError>(HasSubstr("TrainerData::held_out is null")));
  EXPECT_THAT(
      [&] {
        Trainer(task, {rows(64), rows(0)}, make_single_group(), {});
      },
      ThrowsMessage<UsageError>(HasSubstr("held_out has no samples")));
}

TEST(TrainerScores, ATaskThatDoesNotCountIsJudgedByTheSamplesOfItsBatches) {
  const TrainerData data{rows(64), rows(21)};  // 21: the last batch is smaller
  LineTask counting;
  Trainer expected(counting, data, make_single_group(), {.batch_size = 8});
  LineTask silent;
  silent.says_nothing = true;
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < 2; ++i) {
      silent.module()->parameters()[i].copy_(counting.module()->parameters()[i]);
    }
  }
  Trainer trainer(silent, data, make_single_group(), {.batch_size = 8});
  EXPECT_EQ(trainer.evaluate().num_counted, 21);
  EXPECT_EQ(trainer.evaluate().loss, expected.evaluate().loss);
  EXPECT_GT(trainer.evaluate().loss, 0);
}

TEST(TrainerScores, ALossOfNothingIsNoNumber) {
  LineTask task;
  task.counts_nothing = true;
  Trainer trainer(task, {rows(64), rows(8)}, make_single_group(), {.batch_size = 8});
  EXPECT_TRUE(std::isnan(trainer.evaluate().loss)) << "0 would be the best there is";
}

TEST(TrainerScores, NaNIsNeverTheBestAndDoesNotStandInTheWay) {
  LineTask task;
  task.says_nothing = true;
  task.num_nan = 1;
  const TrainResult result =
      run(task, {.epochs = 3, .batch_size = 8, .workers = 0}, {rows(64), rows(8)});
  ASSERT_TRUE(result.best.has_value());
  EXPECT_GE(result.best->step, 16) << "the first epoch's was NaN";
  EXPECT_FALSE(std::isnan(result.best->loss));

  LineTask hopeless;
  hopeless.says_nothing = true;
  hopeless.num_nan = 1000;
  const TrainResult none = run(
      hopeless, {.epochs = 5, .early_stop = 2, .batch_size = 8, .workers = 0}, {rows(64), rows(8)});
  EXPECT_EQ(none.end, TrainEnd::EarlyStop);
  EXPECT_FALSE(none.best.has_value());
  EXPECT_TRUE(train::is_better({.loss = 1}, Evaluation{.loss = std::nan("")}))
      << "of an older checkpoint";
}

TEST(TrainerScales, AnOverflowOfFloat16sScaleIsNoBadStep) {
  const TrainerData data{rows(64), nullptr};
  LineTask task;
  task.overflows_above = 16;  // 12 halvings from 65536: more than max_bad_steps
  const TrainerOptions options{.epochs = 3,
                               .batch_size = 4,
                               .precision = Precision::Float16,
                               .on_bad_step = BadStepRule::Stop,
                               .workers = 0};
  const TrainResult result = run(task, options, data);
  EXPECT_EQ(result.steps, 48);
  EXPECT_GT(result.seconds, 0);
  EXPECT_EQ(result.num_bad_steps, 12) << "left out, and counted";

  LineTask hopeless;
  hopeless.overflows_above = 0.5;  // at a scale of 1 too
  EXPECT_THAT([&] { run(hopeless, options, data); },
              ThrowsMessage<UsageError>(HasSubstr("step 16 has a gradient that is not finite")));
}

TEST(TrainerThreads, ShareTheCoresOfTheHostAmongItsShards) {
  const auto body = [](Group& group) {
    const int cores = 8;
    test::pretend_cores({0, 1, 2, 3, 4, 5, 6, 7});
    for (const int shards : {2, 4, 16}) {
      LineTask task;
      Trainer trainer(task, {rows(64), nullptr}, group, {.batch_size = 16, .shards = shards});
      EXPECT_EQ(trainer.threads(), std::max(1, cores / shards)) << shards << " shards";
      EXPECT_EQ(at::get_num_threads(), trainer.threads());
    }
    LineTask task;
    const Trainer as_asked(task, {rows(64), nullptr}, group, {.batch_size = 8, .threads = 3});
    EXPECT_EQ(as_asked.threads(), 3);
    if (group.rank() == 1) {
      test::pretend_cores({5});
    }
    const Trainer bound(task, {rows(64), nullptr}, group, {.batch_size = 8, .shards = 2});
    EXPECT_EQ(bound.threads(), group.size() == 1 ? 4 : 1) << "as the rank with the fewest";
    test::pretend_cores({});
  };
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, body, {.env = {"OMP_NUM_THREADS=1024"}});
  }
}

TEST(TrainerThreads, AreNoMoreThanOpenMPsLimitAndThoseTheRunBeganWith) {
  run_ranks(2,
            [](Group& group) {
              LineTask task;
              test::pretend_cores({0, 1, 2, 3, 4, 5, 6, 7});
              EXPECT_EQ(Trainer(task, {rows(64), nullptr}, group, {.batch_size = 8}).threads(), 3);
            },
            {.env = {"OMP_NUM_THREADS=3,2"}});
  const test::TempFolder folder;
  TrainerOptions options{.batch_size = 8,
                         .shards = 2,
                         .threads = 3,
                         .schedule = Schedule::Constant,
                         .workers = 0,
                         .checkpoint_dir = folder.path()};
  LineTask first;
  EXPECT_EQ(run(first, options, {rows(64), nullptr}).threads, 3);
  options.threads = 0;
  options.epochs = 2;
  LineTask second;
  const TrainResult result = run(second, options, {rows(64), nullptr});
  EXPECT_EQ(result.resumed_at, 8);
  EXPECT_EQ(result.threads, 3);
}

}  // namespace
}  // namespace lockstep

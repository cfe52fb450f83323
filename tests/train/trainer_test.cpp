// The loop on real ranks: equal bits whatever their number, exact resume, and how it ends.
#include <cstdlib>
#include <filesystem>
#include <iterator>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/train/trainer.h>

#include "base/unique_fd.h"
#include "checkpoint_files/owner.h"
#include "support/fleet.h"
#include "support/temp_folder.h"
#include "train/evaluate.h"
#include "train/points.h"
#include "train/run_device.h"
#include "train/small_net.h"

namespace lockstep {
namespace {

using test::NetTask;
using test::points;
using test::points_to_learn;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::rank_argument;
using testing_support::run_ranks;

TrainerOptions options_of_test() {
  return {.epochs = 3,
          .batch_size = 32,
          .accumulate = 2,
          .shards = 8,
          .seed = 5,
          .lr = 0.02,
          .warmup_steps = 3,
          .ema_decay = 0.9,
          .spike_factor = 50,
          .log_every = 3,
          .workers = 1};
}

std::string fingerprint(const TrainResult& result) {
  return fmt::format("{:016x} {} {:a} {:a} {}", result.parameter_hashes.front(), result.steps,
                     result.last.loss, result.evaluation->loss, result.evaluation->num_correct);
}

// Of a run that was interrupted: what was told on the way may differ.
std::string state_of(const TrainResult& result) {
  return fmt::format("{:016x} {} {:a} {}", result.parameter_hashes.front(), result.steps,
                     result.evaluation->loss, result.evaluation->num_correct);
}

// A schedule that does not ask how long the run will be: a short one is the beginning of a long
// one.
TrainerOptions resumable() {
  TrainerOptions options = options_of_test();
  options.schedule = Schedule::Constant;
  return options;
}

TrainResult run_here(const TrainerOptions& options, Group group = make_single_group()) {
  NetTask task;
  return Trainer(task, points_to_learn(), std::move(group), options).run();
}

TEST(Trainer, AnyNumberOfRanksEndsWithTheSameBits) {
  const std::string expected = fingerprint(run_here(options_of_test()));
  for (const int ranks : {2, 4, 8}) {
    run_ranks(ranks,
              [](Group& group) {
                const TrainResult result = run_here(options_of_test(), group);
                EXPECT_TRUE(result.same_bits());
                EXPECT_EQ(fingerprint(result), rank_argument());
              },
              {.argument = expected});
  }
}

TEST(Trainer, ThreeRanksAddUpTheirPiecesUnderNoSync) {
  run_ranks(3, [](Group& group) {
    TrainerOptions options = options_of_test();
    options.shards = 0;
    options.batch_size = 36;
    options.accumulate = 3;
    const TrainResult result = run_here(options, group);
    EXPECT_TRUE(result.same_bits());
    EXPECT_EQ(result.steps, 9);
    EXPECT_TRUE(std::isfinite(result.last.loss));
  });
}

// Ends after every step of the run in turn, on two ranks, and goes on on one and on four.
TEST(Trainer, AStopAnywhereAndAResumeOnOtherRanksChangeNoBit) {
  TrainerOptions options = resumable();
  const std::string expected = state_of(run_here(options));
  for (int64_t stop = 1; stop < 12; ++stop) {
    const test::TempFolder folder;
    run_ranks(2,
              [](Group& group) {
                const std::string& argument = rank_argument();
                TrainerOptions own = resumable();
                own.max_steps = std::atol(argument.c_str());
                own.checkpoint_dir = argument.substr(argument.find(' ') + 1);
                EXPECT_EQ(run_here(own, group).steps, own.max_steps);
              },
              {.argument = fmt::format("{} {}", stop, folder.path())});
    options.checkpoint_dir = folder.path();
    if (stop % 2 == 0) {
      const TrainResult result = run_here(options);
      EXPECT_EQ(result.resumed_at, stop);
      EXPECT_EQ(state_of(result), expected) << "ended after step " << stop;
      continue;
    }
    run_ranks(4,
              [](Group& group) {
                const std::string& argument = rank_argument();
                TrainerOptions own = resumable();
                own.checkpoint_dir = argument.substr(argument.find('|') + 1);
                EXPECT_EQ(state_of(run_here(own, group)), argument.substr(0, argument.find('|')));
              },
              {.argument = expected + "|" + folder.path()});
  }
}

// An exception in the middle of a run stands for its death: what is not in a checkpoint is gone.
TEST(Trainer, StepsAfterTheLastCheckpointAreMadeAgain) {
  TrainerOptions options = resumable();
  const std::string expected = state_of(run_here(options));
  const test::TempFolder folder;
  options.checkpoint_dir = folder.path();
  options.checkpoint_every = 5;
  options.log_every = 1;
  struct Death {};
  NetTask task;
  const TrainWatcher watcher{.on_step = [](const StepReport& report) {
    if (report.step == 8) {
      throw Death();
    }
  }};
  EXPECT_THROW(Trainer(task, points_to_learn(), make_single_group(), options, watcher).run(),
               Death);
  const TrainResult result = run_here(options);
  EXPECT_EQ(result.resumed_at, 5);
  EXPECT_EQ(state_of(result), expected);
  EXPECT_EQ(state_of(run_here(options)), expected) << "a run that has ended stays as it is";
}

// The record of a run on another host that seems to be alive, and that ends with a save while this
// one waits for a sign of it.
TEST(Trainer, ClaimsItsFolderBeforeItPicksACheckpoint) {
  namespace fs = std::filesystem;
  const test::TempFolder other, folder;
  TrainerOptions options = resumable();
  options.checkpoint_dir = other.path();
  options.max_steps = 3;
  run_here(options);
  options.checkpoint_dir = folder.path();
  const std::string record = folder.at(checkpoint_files::kOwnerFile);
  std::string text;
  {
    const auto owner = checkpoint_files::claim_place(folder.path());
    text = base::read_file(record);
  }
  auto json = nlohmann::json::parse(text);
  json["boot"] = "another";
  json["token"] = "of another run";
  fs::create_directories(folder.path());
  base::write_file_atomically(record, json.dump());
  int num_waits = 0;
  log::set_sink([&](log::Level, std::string_view line) {
    if (line.find("for a sign of it") != line.npos) {
      ++num_waits;
      fs::copy(other.path(), folder.path(),
               fs::copy_options::recursive | fs::copy_options::copy_symlinks);
      fs::remove(record);
    }
  });
  options.max_steps = 4;
  const TrainResult result = run_here(options);
  log::set_sink({});
  EXPECT_EQ(num_waits, 1);
  EXPECT_EQ(result.resumed_at, 3) << "what the other run has saved last";
}

TEST(Trainer, ACheckpointOfAnotherRunIsRefused) {
  const test::TempFolder folder;
  TrainerOptions options = resumable();
  options.checkpoint_dir = folder.path();
  options.max_steps = 1;
  options.description = "seed = 5\nlr = 1\n";
  run_here(options);
  options.description = "seed = 5\nlr = 2\n";
  EXPECT_THAT([&] { run_here(options); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("it has `lr = 1`, this run has `lr = 2`"),
                                              HasSubstr("of its own"))));
  options.resume = false;
  EXPECT_THAT([&] { run_here(options); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("holds a checkpoint already"),
                                              HasSubstr("set checkpoint.dir to another place"))));
  options.checkpoint_dir = folder.at("its own");
  EXPECT_EQ(run_here(options).resumed_at, 0);
}

// Which kind of device a run is of, so that it goes on there.
TEST(Trainer, ACheckpointKnowsItsDevice) {
  const test::TempFolder folder;
  TrainerOptions options = resumable();
  options.device = TrainDevice::Cpu;
  options.checkpoint_dir = folder.path();
  options.max_steps = 1;
  run_here(options);
  Group group = make_single_group();
  const auto checkpoint = find_checkpoint(folder.path(), group);
  EXPECT_EQ(checkpoint->info().values.at("device"), "cpu");
  const train::DeviceChoice choice = train::device_choice(options, checkpoint);
  EXPECT_EQ(choice.before, TrainDevice::Cpu);
  EXPECT_EQ(choice.checkpoint, checkpoint->path());
}

TEST(Trainer, ARunWithoutShardsGoesOnWithThoseItBeganWith) {
  const test::TempFolder folder;
  run_ranks(4,
            [](Group& group) {
              TrainerOptions options = resumable();
              options.shards = 0;
              options.threads = 1;  // else a rank may have fewer than this process
              options.max_steps = 4;
              options.checkpoint_dir = rank_argument();
              run_here(options, group);
            },
            {.argument = folder.path()});
  TrainerOptions options = resumable();
  options.shards = 4;
  options.threads = 1;
  const std::string expected = state_of(run_here(options));
  options.shards = 0;
  options.checkpoint_dir = folder.path();
  EXPECT_EQ(state_of(run_here(options)), expected);
}

TEST(Trainer, OnRanksThatItsShardsCannotBeDealtToItGoesOnOnlyWithConsent) {
  const test::TempFolder folder;
  TrainerOptions options = resumable();
  options.shards = 0;
  options.max_steps = 4;
  options.checkpoint_dir = folder.path();
  options.description = "seed = 5\nshards = 0\n";
  run_here(options);
  run_ranks(2,
            [](Group& group) {
              TrainerOptions own = resumable();
              own.shards = 0;
              own.checkpoint_dir = rank_argument();
              own.description = "seed = 5\nshards = 0\n";
              EXPECT_THAT([&] { run_here(own, group); },
                          ThrowsMessage<UsageError>(
                              AllOf(HasSubstr("cut into 1 shard"), HasSubstr("be dealt to 2 ranks"),
                                    HasSubstr("--allow-other-bits"), HasSubstr("--shards S"))));
              own.allow_other_bits = true;
              const TrainResult result = run_here(own, group);
              EXPECT_EQ(result.resumed_at, 4);
              EXPECT_EQ(result.steps, 12);
              EXPECT_TRUE(result.same_bits());
              // From here on it is a run of two shards.
              own.allow_other_bits = false;
              own.epochs = 4;
              EXPECT_EQ(run_here(own, group).resumed_at, 12);
            },
            {.argument = folder.path()});
  options.max_steps = 0;
  options.epochs = 5;
  options.shards = 2;
  options.description = "seed = 5\nshards = 2\n";
  EXPECT_EQ(run_here(options).resumed_at, 16) << "the same number, said in another way";
  options.shards = 4;
  EXPECT_THAT([&] { run_here(options); },
              ThrowsMessage<UsageError>(HasSubstr("this one is to have 4")));
}

// A sample that makes every gradient of its batch NaN.
TEST(Trainer, ABadStepChangesNothingOnAnyRankAndIsCounted) {
  run_ranks(2, [](Group& group) {
    at::Tensor input = at::arange(96, at::kFloat).sin().reshape({16, 6});
    input[3][2] = std::nan("");
    const auto data = make_dataset({input, at::arange(16, at::kLong).remainder(3)});
    TrainerOptions options{.epochs = 3, .batch_size = 4, .workers = 0};
    options.max_bad_steps = 1;
    NetTask task;
    TrainResult result = Trainer(task, {.train = data, .held_out = {}}, group, options).run();
    EXPECT_EQ(result.num_bad_steps, 3) << "once in each epoch";
    EXPECT_TRUE(result.same_bits());
    for (const at::Tensor& parameter : task.module()->parameters()) {
      EXPECT_TRUE(parameter.isfinite().all().item<bool>());
    }
    options.on_bad_step = BadStepRule::Stop;
    NetTask strict;
    EXPECT_THROW(Trainer(strict, {.train = data, .held_out = {}}, group, options).run(),
                 UsageError);
  });
}

TEST(Trainer, EndsEarlyWhenNothingGetsBetter) {
  TrainerOptions options = options_of_test();
  options.epochs = 50;
  options.lr = 0;  // only BatchNorm's averages change, and settle
  options.eval_every = 2;
  options.early_stop = 3;
  const TrainResult result = run_here(options);
  EXPECT_EQ(result.end, TrainEnd::EarlyStop);
  EXPECT_EQ(result.steps, result.best->step + 6) << "the best, then three more";
}

TEST(Trainer, TheTimeLimitEndsWithACheckpointOnAllRanks) {
  const test::TempFolder folder;
  run_ranks(2,
            [](Group& group) {
              TrainerOptions options = options_of_test();
              options.epochs = 1'000'000;
              options.max_time = std::chrono::seconds(1);
              options.checkpoint_dir = rank_argument();
              options.keep.keep_best = false;
              options.eval_every = 1'000'000'000;
              const TrainResult result = run_here(options, group);
              EXPECT_EQ(result.end, TrainEnd::MaxTime);
              const auto checkpoint = find_checkpoint(rank_argument(), group);
              ASSERT_TRUE(checkpoint.has_value());
              EXPECT_EQ(checkpoint->info().step, result.steps);
            },
            {.argument = folder.path()});
}

TEST(Trainer, EachHeldOutSampleCountsOnceAndAddsUpToTheSameBits) {
  NetTask task_alone;
  Group alone = make_single_group();
  const Evaluation expected =
      train::evaluate(task_alone, points(37, 0.5), alone, {.batch_size = 4});
  EXPECT_EQ(expected.num_counted, 37);
  for (const int ranks : {2, 3, 8}) {
    run_ranks(ranks,
              [](Group& group) {
                NetTask task;
                const Evaluation found =
                    train::evaluate(task, points(37, 0.5), group, {.batch_size = 4});
                EXPECT_EQ(found.num_counted, 37);
                EXPECT_EQ(fmt::format("{:a} {}", found.loss, found.num_correct), rank_argument());
                EXPECT_TRUE(task.module()->is_training()) << "the mode is put back";
              },
              {.argument = fmt::format("{:a} {}", expected.loss, expected.num_correct)});
  }
}

TEST(Trainer, SixteenBitsLearnToo) {
  for (const auto precision : {Precision::BFloat16, Precision::Float16}) {
    TrainerOptions options = options_of_test();
    options.precision = precision;
    options.epochs = 40;
    std::vector<double> losses;
    NetTask task;
    const TrainWatcher watcher{
        .on_step = [&](const StepReport& report) { losses.push_back(report.loss); }};
    Trainer(task, points_to_learn(), make_single_group(), options, watcher).run();
    EXPECT_LT(losses.back(), 0.9 * losses.front());
  }
}

// What a process holds.
struct Holdings {
  int64_t resident_kb = 0;
  int64_t num_fds = 0;
  int64_t num_threads = 0;
  int64_t num_shared_maps = 0;
};

int64_t count_in(const std::string& folder) {
  const std::filesystem::directory_iterator all(folder);
  return std::distance(begin(all), end(all));
}

Holdings holdings() {
  const std::string status = base::read_file("/proc/self/status");
  const std::string maps = base::read_file("/proc/self/maps");
  Holdings now{.resident_kb = std::atol(status.c_str() + status.find("VmRSS:") + 6),
               .num_fds = count_in("/proc/self/fd"),
               .num_threads = count_in("/proc/self/task")};
  for (size_t at = maps.find("memfd:"); at != std::string::npos; at = maps.find("memfd:", at + 1)) {
    ++now.num_shared_maps;
  }
  return now;
}

// 20,000 steps with a checkpoint every 50 behind the flag; else the same with 400.
TEST(Trainer, ALongRunHoldsNoMoreThanAShortOne) {
  const bool is_long = std::getenv("LOCKSTEP_LONG_TESTS") != nullptr;
  const test::TempFolder folder;
  run_ranks(2,
            [](Group& group) {
              class Watched : public NetTask {
               public:
                TaskOutput forward(const Batch& batch) override {
                  if (++num_ == first) {
                    early = holdings();
                  }
                  return NetTask::forward(batch);
                }
                int64_t first = 0;
                Holdings early;

               private:
                int64_t num_ = 0;
              };
              const std::string& argument = rank_argument();
              const int64_t steps = std::atol(argument.c_str());
              Watched task;
              task.first = steps / 4;
              TrainerOptions options{.epochs = 1'000'000, .max_steps = steps, .batch_size = 8};
              options.eval_every = 100;
              options.checkpoint_every = 50;
              options.checkpoint_dir = argument.substr(argument.find(' ') + 1);
              Holdings late;
              Trainer trainer(task, points_to_learn(), group, options);
              EXPECT_EQ(trainer.run().steps, steps);
              late = holdings();
              EXPECT_LE(late.num_fds, task.early.num_fds + 2);
              EXPECT_LE(late.num_threads, task.early.num_threads + 1);
              EXPECT_LE(late.num_shared_maps, task.early.num_shared_maps);
              EXPECT_LE(late.resident_kb, task.early.resident_kb + 16'384);
            },
            {.argument = fmt::format("{} {}", is_long ? 20'000 : 400, folder.path()),
             .limit = std::chrono::seconds(is_long ? 3600 : 120)});
}

TEST(Trainer, AnUnreadableSampleCountsForNothing) {
  const at::Tensor logits = at::tensor({2.0f, 0.0f, 0.0f, 1.0f}).reshape({2, 2}).requires_grad_();
  const TaskOutput one = classify(logits, at::tensor({int64_t{0}, kCorruptTarget}, at::kLong));
  EXPECT_EQ(one.num_counted.value(), 1);
  EXPECT_EQ(one.num_correct.value(), 1);
  const TaskOutput none = classify(logits, at::tensor({kCorruptTarget, kCorruptTarget}, at::kLong));
  EXPECT_EQ(none.num_counted.value(), 0);
  none.loss.backward();
  EXPECT_TRUE(logits.grad().eq(0).all().item<bool>());
}

TEST(Trainer, WhatCannotBeIsSaidBeforeItBegins) {
  NetTask task;
  const auto make = [&](TrainerData data, const TrainerOptions& options) {
    Trainer trainer(task, std::move(data), make_single_group(), options);
  };
  EXPECT_THAT([&] { make({}, {}); }, ThrowsMessage<UsageError>(HasSubstr("nothing to train on")));
  EXPECT_THAT([&] { make(points_to_learn(), {.batch_size = 141}); },
              ThrowsMessage<UsageError>(HasSubstr("more than the 140 samples")));
  EXPECT_THAT([&] { make(points_to_learn(), {.batch_size = 16, .shards = 3}); },
              ThrowsMessage<UsageError>(HasSubstr("power of two")));
  EXPECT_THAT([&] { make(points_to_learn(), {.batch_size = 16, .checkpoint_every = 2}); },
              ThrowsMessage<UsageError>(HasSubstr("checkpoint.dir")));
}

}  // namespace
}  // namespace lockstep

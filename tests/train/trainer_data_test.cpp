// What a run may go on from: a checkpoint of the same settings and of the same data.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/base/error.h>
#include <lockstep/train/trainer.h>

#include "support/fleet.h"
#include "support/temp_folder.h"
#include "train/points.h"

namespace lockstep {
namespace {

using test::points;
using test::points_to_learn;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::rank_argument;
using testing_support::run_ranks;

class LinearTask : public TrainingTask {
 public:
  std::shared_ptr<torch::nn::Module> module() const override { return net_.ptr(); }
  TaskOutput forward(const Batch& batch) override {
    return classify(net_(batch.input), batch.target);
  }

 private:
  torch::nn::Linear net_{6, 3};
};

// Four steps to an epoch of points_to_learn().
TrainerOptions resumable() {
  return {.epochs = 3, .batch_size = 32, .shards = 8, .schedule = Schedule::Constant, .workers = 1};
}

TrainResult run_here(const TrainerOptions& options, Group group = make_single_group()) {
  LinearTask task;
  return Trainer(task, points_to_learn(), std::move(group), options).run();
}

TEST(Trainer, OtherDataNeedConsent) {
  const test::TempFolder folder;
  TrainerOptions options = resumable();
  options.epochs = 1;
  options.checkpoint_dir = folder.path();
  run_here(options);
  options.epochs = 2;
  const TrainerData cut{.train = points(70, 0), .held_out = points(37, 0.5)};
  const TrainerData other{.train = points(140, 0), .held_out = points(37, 0.6)};
  const auto run = [&](const TrainerData& data) {
    LinearTask task;
    return Trainer(task, data, make_single_group(), options).run();
  };
  EXPECT_THAT([&] { run(cut); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("train had 140 samples and has 70 now"),
                                              HasSubstr("--allow-other-data"))));
  EXPECT_THAT([&] { run(other); }, ThrowsMessage<UsageError>(HasSubstr("held_out")));
  options.data_fingerprint = "mine";
  EXPECT_THROW(run(points_to_learn()), UsageError);
  options.data_fingerprint.clear();
  options.allow_other_data = true;
  options.epochs = 4;
  EXPECT_EQ(run(cut).resumed_at, 4);
  // From here on these are the run's data.
  options.allow_other_data = false;
  options.epochs = 6;
  EXPECT_EQ(run(cut).resumed_at, 8);
  EXPECT_THROW(run(points_to_learn()), UsageError);
}

// Whoever looks finds the same.
TEST(Trainer, DataAreTheSameOnAnyNumberOfRanks) {
  const test::TempFolder folder;
  TrainerOptions options = resumable();
  options.epochs = 1;
  options.checkpoint_dir = folder.path();
  run_here(options);
  run_ranks(4,
            [](Group& group) {
              TrainerOptions more = resumable();
              more.checkpoint_dir = rank_argument();
              EXPECT_EQ(run_here(more, group).resumed_at, 4);
            },
            {.argument = folder.path()});
}

TEST(Trainer, ValuesOfAProgramKeepClearOfTheTrainersOwn) {
  const test::TempFolder folder;
  TrainerOptions options = resumable();
  options.max_steps = 1;
  options.checkpoint_dir = folder.path();
  options.values = {{"mine", "kept"}};
  run_here(options);
  Group group = make_single_group();
  const auto saved = find_checkpoint(folder.path(), group)->info().values;
  EXPECT_EQ(saved.at("mine"), "kept");
  EXPECT_GE(saved.size(), 10u);
  for (const auto& [key, value] : saved) {
    if (key == "mine") {
      continue;
    }
    options.values = {{"mine", "kept"}, {key, "x"}};
    EXPECT_THAT([&] { run_here(options); },
                ThrowsMessage<UsageError>(AllOf(
                    HasSubstr(fmt::format("values has the key \"{}\"", key)),
                    HasSubstr("another name than step, shards, "), HasSubstr("optimizer, data"))))
        << key;
  }
}

// Before the trainer kept them, "optimizer" and "device" were names like any other.
TEST(Trainer, AnOldCheckpointsOwnOptimizerAndDeviceAreNotTheTrainers) {
  const test::TempFolder folder;
  TrainerOptions options = resumable();
  options.device = TrainDevice::Cpu;
  options.max_steps = 1;
  options.checkpoint_dir = folder.at("new");
  run_here(options);
  Group group = make_single_group();
  {
    const auto checkpoint = find_checkpoint(folder.at("new"), group);
    std::vector<NamedTensor> tensors;
    std::vector<WeightTarget> targets;
    for (const WeightInfo& one : checkpoint->tensors()) {
      tensors.push_back({one.name, at::empty(one.shape, one.dtype)});
      targets.push_back({one.name, tensors.back().tensor});
    }
    checkpoint->load(targets, group);
    CheckpointInfo info = checkpoint->info();
    info.values["optimizer"] = "sgd with warm restarts";
    info.values["device"] = "box 3";
    CheckpointWriter writer(folder.at("old"), group);
    writer.begin(info, tensors);
    writer.wait();
  }
  options.checkpoint_dir = folder.at("old");
  options.max_steps = 2;
  EXPECT_EQ(run_here(options).resumed_at, 1);
  options.max_steps = 3;
  options.groups = {{.name = "bias", .pattern = "bias"}};
  EXPECT_THAT([&] { run_here(options); },
              ThrowsMessage<UsageError>(HasSubstr("other parameter groups")));
}

TEST(Trainer, ASettingThatIsYoungerThanTheCheckpointHadItsDefault) {
  const test::TempFolder folder;
  TrainerOptions options = resumable();
  options.epochs = 1;
  options.checkpoint_dir = folder.path();
  options.description = "recipe = \"x\"\n[data]\nold = 1\n[train]\nlr = 0.5\n";
  run_here(options);
  options.epochs = 2;
  const std::string defaults = "recipe = \"x\"\n[train]\nlr = 0.1\nnew = 3\n";
  options.description = "recipe = \"x\"\n[train]\nlr = 0.5\nnew = 3\n";
  EXPECT_THROW(run_here(options), UsageError) << "nothing is said of defaults";
  options.description_defaults = defaults;
  options.description = "recipe = \"x\"\n[train]\nlr = 0.5\nnew = 4\n";
  EXPECT_THAT([&] { run_here(options); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("new = 3"), HasSubstr("new = 4"))));
  options.description = "recipe = \"x\"\n[train]\nlr = 0.1\nnew = 3\n";
  EXPECT_THAT([&] { run_here(options); }, ThrowsMessage<UsageError>(HasSubstr("lr = 0.5")));
  options.description = "recipe = \"x\"\n[train]\nlr = 0.5\nnew = 3\n";
  EXPECT_EQ(run_here(options).resumed_at, 4);
}

}  // namespace
}  // namespace lockstep

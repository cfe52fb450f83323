// What a step does where the host cannot read tensors, on CPU tensors that take that path: sums,
// labels, faults, too little memory; and which device a run takes.
#include "ddp/device/device_path.h"

#include <cmath>
#include <cstdlib>
#include <set>

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/device/device.h>
#include <lockstep/models/loss.h>
#include <lockstep/train/trainer.h>

#include "device/memory.h"
#include "models/shifted_labels.h"
#include "support/fleet.h"
#include "support/late_copies.h"
#include "train/points.h"
#include "train/run_device.h"
#include "train/step/out_of_memory.h"
#include "train/tally.h"

namespace lockstep {
namespace {

using ddp::DevicePathOnCpu;
using test::points;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;
using testing_support::run_ranks;
using train::Tally;

constexpr const char* kTorchsText =
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity of 139.80 GiB of "
    "which 1.19 GiB is free. Process 7 has 2 GiB memory in use. If reserved but unallocated memory "
    "is large try setting PYTORCH_CUDA_ALLOC_CONF";

at::Tensor waves(at::IntArrayRef sizes, double pace) {
  int64_t count = 1;
  for (const int64_t size : sizes) {
    count *= size;
  }
  return at::arange(count, at::kFloat).mul(pace).sin().reshape(sizes);
}

at::Tensor labels(std::initializer_list<int64_t> values) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::kLong);
}

// Calls by which the host would read from a device.
class ReadCounter {
 public:
  ReadCounter()
      : handle_(at::addGlobalCallback(
            at::RecordFunctionCallback(&count).scopes({at::RecordScope::FUNCTION}))) {
    num_reads = 0;
  }
  ~ReadCounter() { at::removeCallback(handle_); }
  ReadCounter(const ReadCounter&) = delete;
  ReadCounter& operator=(const ReadCounter&) = delete;

  static int so_far() { return num_reads.load(); }

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    static const std::set<std::string_view> kReads = {
        "aten::_local_scalar_dense", "aten::equal",   "aten::nonzero",
        "aten::is_nonzero",          "aten::unique2", "aten::masked_select"};
    num_reads += kReads.count(function.name()) != 0 ? 1 : 0;
    return nullptr;
  }
  inline static std::atomic<int> num_reads{0};
  at::CallbackHandle handle_;
};

TEST(ClassifyOnDevice, IsTheCpusLossWithoutReadingAnything) {
  for (const double smoothing : {0.0, 0.1}) {
    const at::Tensor logits = waves({5, 4}, 1.7).requires_grad_();
    const at::Tensor target = labels({0, 3, kCorruptTarget, 1, 2});
    const TaskOutput expected = classify(logits, target, smoothing);
    expected.loss.backward();
    const at::Tensor gradient = logits.grad().clone();
    logits.mutable_grad().reset();

    const DevicePathOnCpu path;
    const ReadCounter reads;
    const TaskOutput found = classify(logits, target, smoothing);
    found.loss.backward();
    EXPECT_EQ(ReadCounter::so_far(), 0);
    EXPECT_TRUE(found.loss.allclose(expected.loss, 1e-6, 1e-7));
    EXPECT_TRUE(logits.grad().allclose(gradient, 1e-6, 1e-7));
    EXPECT_EQ(found.num_counted.value(), 4);
    EXPECT_EQ(found.num_correct.value(), expected.num_correct.value());
    EXPECT_NO_THROW(found.find_fault());
  }
}

TEST(ClassifyOnDevice, UnreadableSamplesAloneHaveNoGradient) {
  const DevicePathOnCpu path;
  for (const double smoothing : {0.0, 0.1}) {
    const at::Tensor logits = waves({2, 3}, 1.1).requires_grad_();
    const TaskOutput none = classify(logits, labels({kCorruptTarget, kCorruptTarget}), smoothing);
    none.loss.backward();
    EXPECT_EQ(none.loss.item<double>(), 0);
    EXPECT_TRUE(logits.grad().eq(0).all().item<bool>());
    EXPECT_EQ(none.num_counted.value(), 0);
  }
}

// Also where no label of the batch is right.
TEST(ClassifyOnDevice, AWrongLabelMakesTheGradientNanAndIsNamedAfterwards) {
  const DevicePathOnCpu path;
  for (const int64_t wrong : {int64_t{3}, int64_t{-1}, int64_t{1} << 40}) {
    for (const at::Tensor& target : {labels({0, wrong, 2}), labels({wrong, wrong}), labels({wrong}),
                                     labels({kCorruptTarget, wrong})}) {
      const at::Tensor logits = waves({target.size(0), 3}, 1.3).requires_grad_();
      const TaskOutput output = classify(logits, target);
      output.loss.backward();
      EXPECT_TRUE(output.loss.isnan().item<bool>());
      EXPECT_TRUE(logits.grad()[0].isnan().all().item<bool>()) << target;
      EXPECT_GT(output.num_counted.value(), 0);
      EXPECT_THAT(output.find_fault, ThrowsMessage<UsageError>(HasSubstr(
                                         fmt::format("the label {} is not in [0, 3)", wrong))));
    }
  }
}

// Only the second rank's data have it; both say so.
TEST(TrainerOnDevicePath, AWrongLabelEndsTheRunOnAllRanks) {
  run_ranks(2, [](Group& group) {
    class Line : public TrainingTask {
     public:
      std::shared_ptr<torch::nn::Module> module() const override { return line_.ptr(); }
      TaskOutput forward(const Batch& batch) override {
        return classify(line_(batch.input), batch.target);
      }

     private:
      torch::nn::Linear line_{6, 3};
    };
    const DevicePathOnCpu path;
    at::Tensor target = at::arange(16, at::kLong).remainder(3);
    target[13] = 8;
    const auto data = make_dataset({.input = waves({16, 6}, 0.9), .target = target});
    Line task;
    const TrainerOptions options{.epochs = 1, .batch_size = 4, .device = TrainDevice::Cpu};
    EXPECT_THAT([&] { Trainer(task, {.train = data, .held_out = {}}, group, options).run(); },
                ThrowsMessage<UsageError>(HasSubstr("the label 8 is not in [0, 3)")));
    // Of the held-out batches of two, one has nothing but wrong labels.
    at::Tensor judged = at::arange(6, at::kLong).remainder(3);
    judged.narrow(0, 2, 2).fill_(9);
    const auto held_out = make_dataset({.input = waves({6, 6}, 0.4), .target = judged});
    const auto judge = [&] {
      Trainer(task, {.train = points(16, 0), .held_out = held_out}, group, options).evaluate();
    };
    EXPECT_THAT(judge, ThrowsMessage<UsageError>(HasSubstr("the label 9 is not in [0, 3)")));
  });
}

TEST(TallyOnDevice, AddsTheBitsOfTheHost) {
  const Batch batch{.input = at::zeros({7, 1}), .target = {}};
  Tally host(3), device(3);
  for (int i = 0; i < 20; ++i) {
    const int64_t row = i % 3;
    const at::Tensor loss = at::full({}, 0.1f + 0.37f * static_cast<float>(i));
    const int64_t counted = i % 4, correct = i % 5 == 0 ? -1 : i % 3;
    const bool is_said = i % 7 != 0;
    const auto add = [&](Tally& tally, Count num_counted, Count num_correct) {
      TaskOutput output{.loss = loss, .num_correct = std::move(num_correct)};
      if (is_said) {
        output.num_counted = std::move(num_counted);
      }
      tally.add(row, output, batch);
      if (i % 2 == 0) {
        tally.add_sum(row, output, batch);
      }
    };
    add(host, counted, correct);
    const DevicePathOnCpu path;
    if (i % 3 == 0) {
      add(device, counted, correct);  // the loss alone is there
    } else {
      add(device, at::full({1}, counted, at::kLong), at::full({}, correct, at::kLong));
    }
    if (i == 9) {
      EXPECT_TRUE(host.read().equal(device.read()));
      host.clear();
      device.clear();
    }
  }
  EXPECT_TRUE(host.read().equal(device.read())) << host.read() << device.read();
  EXPECT_TRUE(device.read().equal(host.read())) << "and again";
}

TEST(TallyOnDevice, WhatCountsNothingHasNoLoss) {
  const DevicePathOnCpu path;
  Tally tally(1);
  const at::Tensor nan = at::full({}, std::nan(""));
  tally.add_sum(0, {.loss = nan, .num_counted = at::zeros({}, at::kLong)}, {});
  tally.add_sum(0, {.loss = nan, .num_counted = 0}, {});
  EXPECT_EQ(tally.read()[0][Tally::Loss].item<double>(), 0);
}

// Two steps are measured in the middle of a run, with pieces that add up.
TEST(TrainerOnDevicePath, AStepReadsNothingButTheNormOfItsGradient) {
  class Counting : public TrainingTask {
   public:
    std::shared_ptr<torch::nn::Module> module() const override { return line_.ptr(); }
    TaskOutput forward(const Batch& batch) override {
      ++num_forwards;
      if (num_forwards == 5) {
        first = ReadCounter::so_far();
      }
      if (num_forwards == 17) {
        last = ReadCounter::so_far();
      }
      return classify(line_(batch.input), batch.target);
    }
    int num_forwards = 0, first = -1, last = -2;

   private:
    torch::nn::Linear line_{6, 3};
  };
  const DevicePathOnCpu path;
  for (const auto precision : {Precision::Float32, Precision::BFloat16}) {
    Counting task;
    const ReadCounter reads;
    Trainer(task, {.train = points(96, 0), .held_out = {}}, make_single_group(),
            {.epochs = 1,
             .batch_size = 16,
             .accumulate = 2,
             .shards = 2,
             .device = TrainDevice::Cpu,
             .precision = precision,
             .optimizer = OptimizerKind::Sgd,  // the CPU's AdamW reads its number of steps
             .ema_decay = 0.9,
             .log_every = 1000})
        .run();
    ASSERT_EQ(task.num_forwards, 24);
    EXPECT_EQ(task.last - task.first, 0) << "the norms come by one copy, which is no such call";
  }
}

// By a dataset that is read on the trainer's thread. Whether a fault can be found is not
// remembered longer than a step: labels of all steps would pile up on the device.
TEST(TrainerOnDevicePath, TheNextBatchComesWhileAStepComputesAndFaultsAreForgotten) {
  class Counted : public Dataset {
   public:
    int64_t size() const override { return data_->size(); }
    Batch batch(std::span<const SampleKey> samples) const override {
      ++num_read;
      return data_->batch(samples);
    }
    mutable int64_t num_read = 0;

   private:
    std::shared_ptr<const Dataset> data_ = points(40, 0);
  };
  class Holding : public TrainingTask {
   public:
    std::shared_ptr<torch::nn::Module> module() const override { return line_.ptr(); }
    TaskOutput forward(const Batch& batch) override {
      most_held = std::max(most_held, held_.use_count() - 1);
      TaskOutput output = classify(line_(batch.input), batch.target);
      output.find_fault = [held = held_] {};
      return output;
    }
    int64_t most_held = 0;

   private:
    torch::nn::Linear line_{6, 3};
    std::shared_ptr<int> held_ = std::make_shared<int>(0);
  };
  const DevicePathOnCpu path;
  const device::CopiesOnCpu copies(testing_support::make_late_copies);
  const auto data = std::make_shared<Counted>();
  Holding task;
  const TrainWatcher watcher{.on_step = [&](const StepReport& report) {
    const bool is_epoch_end = report.step % 5 == 0;  // there is no next one yet
    EXPECT_EQ(data->num_read, 2 * report.step + (is_epoch_end ? 0 : 1)) << report.step;
  }};
  TrainerOptions options{.epochs = 2, .batch_size = 8, .accumulate = 2, .device = TrainDevice::Cpu};
  options.log_every = 1;
  options.workers = 0;
  options.data_fingerprint = "of the test";
  Trainer(task, {.train = data, .held_out = {}}, make_single_group(), options, watcher).run();
  EXPECT_EQ(data->num_read, 20);
  EXPECT_LE(task.most_held, 2) << "of the pieces of one step";
}

TEST(NextTokens, ShiftedLabelsGiveTheLossAndTheGradientsOfCutLogits) {
  const at::Tensor ids = at::arange(12, at::kLong).mul(5).remainder(7).reshape({3, 4});
  const at::Tensor logits = waves({3, 4, 7}, 0.7).requires_grad_();
  const at::Tensor expected = next_token_loss(logits, ids);
  expected.backward();
  const at::Tensor gradient = logits.grad().clone();
  logits.mutable_grad().reset();
  const at::Tensor found = masked_token_loss(logits, models::shifted_labels(ids));
  found.backward();
  EXPECT_TRUE(found.allclose(expected, 1e-6, 1e-7));
  EXPECT_TRUE(logits.grad().allclose(gradient, 1e-6, 1e-7));
  EXPECT_TRUE(logits.grad().select(1, 3).eq(0).all().item<bool>()) << "nothing follows the last";
  EXPECT_EQ(ids[0][3].item<int64_t>(), 1) << "the ids stay as they are";
}

TEST(OutOfMemory, TellsTheSizesAndTheWayOut) {
  const auto tell = [](const char* text, const TrainerOptions& options, int64_t piece) {
    const c10::OutOfMemoryError error({"", "", 0}, text);
    train::throw_out_of_memory(error, "step 3", train::smaller_pieces(options, piece));
  };
  const TrainerOptions options{.batch_size = 96, .accumulate = 3};
  EXPECT_THAT([&] { tell(kTorchsText, options, 8); },
              ThrowsMessage<OutOfMemoryError>(
                  AllOf(HasSubstr("step 3 does not fit into the GPU's memory: 2.50 GiB were asked "
                                  "for, and 1.19 GiB of GPU 1's 139.80 GiB are free"),
                        HasSubstr("lower train.batch_size (it is 96)"),
                        HasSubstr("raise train.accumulate (it is 3)"), Not(HasSubstr("PYTORCH")))));
  EXPECT_THAT([&] { tell("something else\nwith lines", options, 1); },
              ThrowsMessage<OutOfMemoryError>(
                  AllOf(HasSubstr("memory: something else;"), HasSubstr("one sample already"))));
}

// In the third step of one rank; the others lose it.
TEST(OutOfMemory, EndsTheRunOfOneRankAndIsALostPeerToTheOthers) {
  run_ranks(2, [](Group& group) {
    class Greedy : public TrainingTask {
     public:
      explicit Greedy(bool is_greedy) : is_greedy_(is_greedy) {}
      std::shared_ptr<torch::nn::Module> module() const override { return line_.ptr(); }
      TaskOutput forward(const Batch& batch) override {
        if (is_greedy_ && ++num_forwards_ == 3) {
          throw c10::OutOfMemoryError({"", "", 0}, kTorchsText);
        }
        return classify(line_(batch.input), batch.target);
      }

     private:
      torch::nn::Linear line_{6, 3};
      bool is_greedy_;
      int num_forwards_ = 0;
    };
    const auto train = [&] {
      Greedy task(group.rank() == 1);
      const Group own =
          make_group(group.store(), {.name = "greedy", .rank = group.rank(), .size = group.size()});
      Trainer(task, {.train = points(96, 0), .held_out = {}}, own,
              {.epochs = 1, .batch_size = 16, .device = TrainDevice::Cpu})
          .run();
    };
    if (group.rank() == 1) {
      EXPECT_THAT(train, ThrowsMessage<OutOfMemoryError>(AllOf(
                             HasSubstr("step 2, a piece of 8 samples at a time, does not fit"),
                             HasSubstr("train.batch_size (it is 16)"))));
    } else {
      EXPECT_THAT(train, ThrowsMessage<PeerLostError>(HasSubstr("rank 1")));
    }
  });
}

// On one rank of two; the other does not go on alone.
TEST(OutOfMemory, OfAnOptimizerOfOnesOwnIsNoMistakeOfIts) {
  run_ranks(2, [](Group& group) {
    class Line : public TrainingTask {
     public:
      std::shared_ptr<torch::nn::Module> module() const override { return line_.ptr(); }
      TaskOutput forward(const Batch& batch) override {
        return classify(line_(batch.input), batch.target);
      }

     private:
      torch::nn::Linear line_{6, 3};
    };
    Line task;
    TrainerOptions options{.epochs = 1, .batch_size = 4, .device = TrainDevice::Cpu};
    options.make_optimizer =
        [&](torch::nn::Module& module) -> std::unique_ptr<torch::optim::Optimizer> {
      if (group.rank() == 1) {
        throw c10::OutOfMemoryError({"", "", 0}, kTorchsText);
      }
      return std::make_unique<torch::optim::SGD>(module.parameters(), 0.1);
    };
    EXPECT_THAT([&] { Trainer(task, {.train = points(16, 0), .held_out = {}}, group, options); },
                ThrowsMessage<OutOfMemoryError>(
                    AllOf(HasSubstr("the optimizer that make_optimizer makes does not fit"),
                          HasSubstr("2.50 GiB were asked for"))));
  });
}

class RunDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_is_available()) {
      GTEST_SKIP() << "there is a GPU here; cuda_trainer_test.cpp has what holds then";
    }
    log::set_level(log::Level::Info);
    log::set_sink([this](log::Level level, std::string_view line) {
      lines_.emplace_back(fmt::format("{} {}", static_cast<int>(level), line));
    });
  }
  void TearDown() override {
    log::set_sink({});
    log::set_level(log::Level::Warn);
  }

  at::Device choose(const train::DeviceChoice& choice) {
    Group group = make_single_group();
    return train::choose_device(group, choice);
  }

  std::vector<std::string> lines_;
};

TEST_F(RunDevice, AutoTakesTheCpuAndLogsWhyInOneLine) {
  EXPECT_TRUE(choose({}).is_cpu());
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_THAT(lines_[0], AllOf(HasSubstr("device: cpu, as train.device = \"auto\": "),
                               HasSubstr(cuda_problem())));
}

// One of them insists, and no rank goes on without it.
TEST_F(RunDevice, RanksComeToTheSameAnswer) {
  run_ranks(3, [](Group& group) {
    const char* const before = std::getenv("LOCKSTEP_DEVICE");
    const std::string kept = before != nullptr ? before : "auto";
    if (group.rank() == 1) {
      ::setenv("LOCKSTEP_DEVICE", "gpu", 1);
    }
    EXPECT_THAT([&] { train::choose_device(group, {}); },
                ThrowsMessage<UsageError>(HasSubstr(
                    "train.device = \"auto\": rank 1: LOCKSTEP_DEVICE=gpu is not known")));
    ::setenv("LOCKSTEP_DEVICE", kept.c_str(), 1);
    EXPECT_TRUE(train::choose_device(group, {}).is_cpu());
    EXPECT_THAT([&] { train::choose_device(group, {.wanted = TrainDevice::Cuda}); },
                ThrowsMessage<UsageError>(HasSubstr("train.device = \"cuda\": rank 0: ")));
  });
}

TEST_F(RunDevice, CudaSaysWhatIsMissing) {
  EXPECT_THAT([&] { choose({.wanted = TrainDevice::Cuda}); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("train.device = \"cuda\": "), HasSubstr(cuda_problem()))));
  EXPECT_THAT([&] { choose({.wanted = TrainDevice::Cuda, .setting = "--device"}); },
              ThrowsMessage<UsageError>(HasSubstr("--device = \"cuda\": ")));
}

TEST_F(RunDevice, ARunOfAGpuGoesOnOnTheCpuOnlyWithConsent) {
  for (const auto wanted : {TrainDevice::Auto, TrainDevice::Cpu}) {
    train::DeviceChoice choice{
        .wanted = wanted, .before = TrainDevice::Cuda, .checkpoint = "runs/mine/step-7"};
    EXPECT_THAT([&] { choose(choice); },
                ThrowsMessage<UsageError>(AllOf(HasSubstr("runs/mine/step-7 is of a run on a GPU"),
                                                HasSubstr("go on on the CPU"),
                                                HasSubstr("--allow-other-bits"))));
    choice.allow_other_bits = true;
    EXPECT_TRUE(choose(choice).is_cpu());
    choice = {.wanted = wanted, .before = TrainDevice::Cpu};
    EXPECT_TRUE(choose(choice).is_cpu());
  }
}

TEST_F(RunDevice, ATrainerMovesItsTaskOnceAndSaysWhere) {
  torch::nn::Linear line(6, 3);
  class Line : public TrainingTask {
   public:
    explicit Line(torch::nn::Linear line) : line_(std::move(line)) {}
    std::shared_ptr<torch::nn::Module> module() const override { return line_.ptr(); }
    TaskOutput forward(const Batch& batch) override {
      return classify(line_(batch.input), batch.target);
    }
    void move_to(at::Device device) override {
      TrainingTask::move_to(device);
      places.push_back(device);
    }
    std::vector<at::Device> places;

   private:
    torch::nn::Linear line_;
  };
  Line task(line);
  const Trainer trainer(task, {.train = points(16, 0), .held_out = {}}, make_single_group(),
                        {.batch_size = 4});
  EXPECT_TRUE(trainer.device().is_cpu());
  EXPECT_EQ(task.places, std::vector<at::Device>{at::kCPU});
}

}  // namespace
}  // namespace lockstep

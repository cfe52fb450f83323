// What a trainer needs of a device beside its steps: one pair of streams for all batches, and words
// where memory ends between steps.
#include <algorithm>
#include <atomic>
#include <optional>

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <lockstep/base/error.h>
#include <lockstep/train/trainer.h>

#include "comm/backends/staged_backend.h"
#include "comm/start/connect.h"
#include "ddp/device/device_path.h"
#include "device/memory.h"
#include "support/fleet.h"
#include "support/late_copies.h"
#include "support/temp_folder.h"
#include "train/points.h"

namespace lockstep {
namespace {

using ddp::DevicePathOnCpu;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;
using testing_support::run_ranks;

constexpr const char* kLibtorchsText =
    "CUDA out of memory. Tried to allocate 1.75 GiB. GPU 0 has a total capacity of 79.11 GiB of "
    "which 0.94 GiB is free. Including non-PyTorch memory, this process has 70 GiB in use.";

// The CPU's allocator, which has no memory for one size. Make it after a trainer, which may put one
// of DDP's in that place.
class Allocator final : public c10::Allocator {
 public:
  Allocator() : under_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this); }
  ~Allocator() override { c10::SetCPUAllocator(under_); }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == lacking_bytes) {
      throw c10::OutOfMemoryError({"", "", 0}, kLibtorchsText);
    }
    return under_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return under_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  std::atomic<size_t> lacking_bytes = SIZE_MAX;

 private:
  c10::Allocator* const under_;
};

// A weight and a buffer of sizes that nothing else has.
struct OddNetImpl : torch::nn::Module {
  OddNetImpl() {
    wide = register_module("wide", torch::nn::Linear(6, 1777));
    last = register_module("last", torch::nn::Linear(1777, 3));
    seen = register_buffer("seen", at::arange(4133, at::kFloat).cos());
  }
  torch::nn::Linear wide{nullptr}, last{nullptr};
  at::Tensor seen;
};
constexpr size_t kWeightBytes = 6 * 1777 * sizeof(float), kBufferBytes = 4133 * sizeof(float);

class OddTask : public TrainingTask {
 public:
  std::shared_ptr<torch::nn::Module> module() const override { return net_; }
  TaskOutput forward(const Batch& batch) override {
    return classify(net_->last(net_->wide(batch.input).relu()), batch.target);
  }

 private:
  std::shared_ptr<OddNetImpl> net_ = std::make_shared<OddNetImpl>();
};

TrainerOptions odd_options(const std::string& folder) {
  TrainerOptions options{.max_steps = 2, .batch_size = 16, .accumulate = 2};
  options.device = TrainDevice::Cpu;
  options.checkpoint_dir = folder;
  options.make_optimizer = [](torch::nn::Module& module) {
    return std::make_unique<torch::optim::Adam>(module.parameters(),
                                                torch::optim::AdamOptions(1e-3));
  };
  return options;
}

auto explains(const char* what, const char* way_out) {
  return ThrowsMessage<OutOfMemoryError>(
      AllOf(HasSubstr(what),
            HasSubstr("does not fit into the GPU's memory: 1.75 GiB were asked for, and 0.94 GiB "
                      "of GPU 0's 79.11 GiB are free; "),
            HasSubstr(way_out), Not(HasSubstr("non-PyTorch"))));
}

TEST(DeviceMemory, EndsASaveWithWhatToLower) {
  const test::TempFolder folder;
  std::optional<Allocator> memory;
  OddTask task;
  const TrainWatcher watcher{
      .on_step = [&](const StepReport&) { memory->lacking_bytes = kBufferBytes; }};
  Trainer trainer(task, test::points_to_learn(), make_single_group(), odd_options(folder.path()),
                  watcher);
  memory.emplace();
  EXPECT_THAT([&] { trainer.run(); },
              explains("what a checkpoint copies of buffers and optimizer does",
                       "lower train.batch_size (it is 16), or raise train.accumulate (it is 2)"));
}

TEST(DeviceMemory, EndsAResumeWithTheWayOut) {
  const test::TempFolder folder;
  TrainerOptions options = odd_options(folder.path());
  OddTask task;
  Trainer(task, test::points_to_learn(), make_single_group(), options).run();
  options.max_steps = 3;
  Trainer trainer(task, test::points_to_learn(), make_single_group(), options);
  Allocator memory;
  memory.lacking_bytes = kWeightBytes;  // of the state that Adam had
  EXPECT_THAT([&] { trainer.run(); },
              explains("the state that the checkpoint brings back does", "use a smaller model"));
}

// An evaluation begins with it. The other rank does not wait.
TEST(DeviceMemory, EndsAnExchangeOfBuffersOnItsRank) {
  run_ranks(2, [](Group& group) {
    std::atomic<bool> is_poor = false;
    const auto before_copy = [&] {
      if (is_poor) {
        throw c10::OutOfMemoryError({"", "", 0}, kLibtorchsText);
      }
    };
    const GroupOptions options{.name = "poor", .rank = group.rank(), .size = group.size()};
    Group staged(comm::make_staged_backend(
        {.carrier = comm::connect_group({.store = group.store(), .group = options}).backend,
         .make_copies =
             [&](at::Device) {
               return testing_support::make_hooked_copies(
                   {.before_copy = before_copy, .before_host_memory = {}});
             },
         .is_staged = [](const at::Tensor&) { return true; },
         .piece_bytes = 100'000}));
    OddTask task;
    Trainer trainer(task, test::points_to_learn(), staged, odd_options(""));
    trainer.evaluate();
    is_poor = group.rank() == 1;
    const auto judge = [&] { trainer.evaluate(); };
    if (group.rank() == 1) {
      EXPECT_THAT(judge, explains("what ranks exchange of buffers does",
                                  "lower train.batch_size (it is 16)"));
    } else {
      EXPECT_THAT(judge, ThrowsMessage<CommError>(HasSubstr("rank 1")));
    }
  });
}

// libtorch keeps what was freed on a stream for that stream: new streams for each evaluation would
// leave the memory of its batches behind.
TEST(DeviceMemory, EvaluationsCopyByTheStreamsOfTheSteps) {
  const DevicePathOnCpu path;
  int num_made = 0;
  const device::CopiesOnCpu copies([&](at::Device device) {
    ++num_made;
    return testing_support::make_late_copies(device);
  });
  OddTask task;
  TrainerOptions options = odd_options("");
  options.eval_every = 1;
  int num_evaluations = 0;
  const TrainWatcher watcher{
      .on_step = [&](const StepReport& report) { num_evaluations += report.evaluation ? 1 : 0; }};
  const TrainerData data{.train = test::points(64, 0), .held_out = test::points(9, 0.5)};
  Trainer trainer(task, data, make_single_group(), options, watcher);
  const double loss = trainer.run().evaluation->loss;
  EXPECT_EQ(trainer.evaluate().loss, loss);
  EXPECT_EQ(num_evaluations, 2);
  EXPECT_EQ(num_made, 1);
}

}  // namespace
}  // namespace lockstep

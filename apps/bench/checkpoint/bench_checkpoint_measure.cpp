#include "bench/checkpoint/bench_checkpoint_measure.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/mman.h>
#include <unistd.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/checkpoint.h>

#include "base/stopwatch.h"
#include "base/unique_fd.h"
#include "bench/figures.h"

namespace lockstep {
namespace {

constexpr int64_t kTensorElements = 2 << 20;  // 8 MB, as a layer of a small transformer
constexpr int64_t kElementsPerPage = 1024;
constexpr int64_t kMatrix = 256;
constexpr int kCalmSteps = 3;
constexpr size_t kDiskWrite = 8u << 20;

// The folder, made and removed by rank 0.
class BenchFolder {
 public:
  BenchFolder(const Group& group, const std::string& folder)
      : is_owner_(group.rank() == 0),
        path_((std::filesystem::path(folder) /
               ("lockstep-bench-checkpoint." + std::to_string(::getppid())))
                  .string()) {}
  ~BenchFolder() {
    std::error_code ignored;
    if (is_owner_) {
      std::filesystem::remove_all(path_, ignored);
    }
  }
  BenchFolder(const BenchFolder&) = delete;
  BenchFolder& operator=(const BenchFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string at(const std::string& name) const { return path_ + "/" + name; }

 private:
  const bool is_owner_;
  const std::string path_;
};

class CheckpointMeasurement {
 public:
  CheckpointMeasurement(Group group, const CheckpointBenchPlan& plan)
      : group_(std::move(group)),
        plan_(plan),
        folder_(group_, plan.folder),
        writer_(folder_.at("checkpoints"), group_, {.keep_last = 1}),
        left_(at::rand({kMatrix, kMatrix})),
        right_(at::rand({kMatrix, kMatrix})) {
    const int64_t num_elements = plan.state_bytes / 4;
    for (int64_t done = 0; done < num_elements; done += kTensorElements) {
      state_.push_back({"layer." + std::to_string(state_.size()),
                        at::full({std::min(kTensorElements, num_elements - done)},
                                 static_cast<double>(state_.size()))});
    }
    result_.num_ranks = group_.size();
    result_.state_bytes = num_elements * 4;
    calibrate();
  }

  CheckpointBenchResult run() {
    for (int repeat = -1; repeat < plan_.repeats; ++repeat) {  // the first warms up
      is_counted_ = repeat >= 0;
      measure_training_saves();
      check();
      measure_save();
      measure_sync_save();
      measure_disk();
    }
    return std::move(result_);
  }

 private:
  void add(std::vector<double>& list, double value) {
    if (is_counted_) {
      list.push_back(value);
    }
  }

  // How many products last step_ms with all ranks at work: rank 0's count, for all.
  void calibrate() {
    constexpr int kRounds = 3;
    for (int round = 0; round < kRounds; ++round) {
      group_.barrier();
      const base::Stopwatch watch;
      step();
      const double pace = plan_.step_ms / (watch.seconds() * 1000);
      const at::Tensor number =
          at::full({1}, static_cast<int64_t>(static_cast<double>(num_products_) * pace), at::kLong);
      group_.broadcast(number);
      num_products_ = std::max<int64_t>(1, *number.const_data_ptr<int64_t>());
    }
  }

  // Returns whether any rank still saves.
  bool step() {
    for (int64_t i = 0; i < num_products_; ++i) {
      at::mm(left_, right_);
    }
    writer_.wait_captured();
    for (const NamedTensor& named : state_) {
      named.tensor.slice(0, 0, named.tensor.numel(), kElementsPerPage).add_(1);
    }
    ++num_updates_;
    const at::Tensor busy = at::full({1}, writer_.is_busy() ? 1 : 0, at::kInt);
    group_.all_reduce(busy, {.op = ReduceOp::Max});
    return *busy.const_data_ptr<int>() != 0;
  }

  std::vector<double> take_calm_steps() {
    std::vector<double> steps_s;
    for (int i = 0; i < kCalmSteps; ++i) {
      const base::Stopwatch watch;
      step();
      steps_s.push_back(watch.seconds());
    }
    return steps_s;
  }

  // The steps' times, from the one that begins the save to the one after which no rank saves.
  std::vector<double> take_saving_steps() {
    saved_updates_ = num_updates_;
    std::vector<double> steps_s;
    bool is_busy = true;
    while (is_busy) {
      const base::Stopwatch watch;
      if (steps_s.empty()) {
        writer_.begin({.step = ++num_saves_}, state_);
      }
      is_busy = step();
      steps_s.push_back(watch.seconds());
    }
    return steps_s;
  }

  // A shared machine's pace drifts: each save is held against the calm steps on both its sides.
  void measure_training_saves() {
    std::vector<double> before_s = take_calm_steps();
    for (int i = 0; i < kSavesPerRepeat; ++i) {
      const std::vector<double> saving_s = take_saving_steps();
      writer_.wait();
      const SaveResult result = take_result();
      std::vector<double> after_s = take_calm_steps();
      before_s.insert(before_s.end(), after_s.begin(), after_s.end());
      const double calm_s = median(before_s);
      double stall_s = 0;
      for (const double step_s : saving_s) {
        stall_s += step_s - calm_s;
      }
      result_.bytes_written = result.bytes;
      add(result_.calm_step_s, calm_s);
      add(result_.stall_s, stall_s);
      add(result_.training_save_s, result.seconds);
      before_s = std::move(after_s);
    }
  }

  SaveResult take_result() {
    const auto results = writer_.take_results();
    if (results.size() != 1 || !results[0].committed) {
      throw IoError("the checkpoint was not saved: {}",
                    results.empty() ? "it did not end" : results[0].error);
    }
    return results[0];
  }

  // What was saved is what the state was when the save began.
  void check() {
    const auto checkpoint = find_checkpoint(folder_.at("checkpoints"), group_);
    if (!checkpoint || checkpoint->info().step != num_saves_) {
      throw InternalError("the checkpoint of save {} is not there", num_saves_);
    }
    for (size_t i = 0; i < state_.size(); ++i) {
      const int64_t count = state_[i].tensor.numel();
      const at::Tensor expected = at::full({count}, static_cast<double>(i));
      expected.slice(0, 0, count, kElementsPerPage).add_(static_cast<double>(saved_updates_));
      const std::vector<WeightTarget> target{{state_[i].name, at::empty({count})}};
      checkpoint->load(target, group_);
      if (!at::equal(target[0].tensor, expected)) {
        throw InternalError("tensor {} of the checkpoint is not what was saved", state_[i].name);
      }
    }
  }

  void measure_save() {
    group_.barrier();
    writer_.begin({.step = ++num_saves_}, state_);
    writer_.wait();
    add(result_.save_s, take_result().seconds);
  }

  void measure_sync_save() {
    group_.barrier();
    const base::Stopwatch watch;
    const std::string path = folder_.at("sync.safetensors");
    if (group_.rank() == 0) {
      save_weights(path, state_);
    }
    group_.barrier();
    add(result_.sync_save_s, watch.seconds());
    ::unlink(path.c_str());
  }

  void measure_disk() {
    if (group_.rank() == 0) {
      add(result_.disk_buffered_s, write_to_disk(0));
      try {
        add(result_.disk_direct_s, write_to_disk(O_DIRECT));
      } catch (const IoError&) {
        result_.disk_direct_s.clear();
      }
    }
    group_.barrier();
  }

  double write_to_disk(int flags) {
    const base::Mapping memory(-1, kDiskWrite, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
    std::fill_n(memory.data(), kDiskWrite, std::byte{0x5a});
    const std::string path = folder_.at("disk");
    const base::Stopwatch watch;
    {
      const base::UniqueFd fd = base::open_file(path, O_WRONLY | O_CREAT | O_TRUNC | flags);
      ::posix_fallocate(fd.get(), 0, result_.state_bytes);
      for (int64_t done = 0; done < result_.state_bytes; done += kDiskWrite) {
        base::write_all(fd.get(), memory.data(), kDiskWrite);
      }
      if (::fsync(fd.get()) != 0) {
        throw IoError("cannot sync {}: {}", path, base::errno_text(errno));
      }
    }
    const double seconds = watch.seconds();
    ::unlink(path.c_str());
    return seconds;
  }

  Group group_;
  const CheckpointBenchPlan plan_;
  BenchFolder folder_;
  CheckpointWriter writer_;
  const at::Tensor left_;
  const at::Tensor right_;
  std::vector<NamedTensor> state_;
  int64_t num_products_ = 100;  // until calibrate()
  int64_t num_updates_ = 0;
  int64_t saved_updates_ = 0;
  int64_t num_saves_ = 0;
  bool is_counted_ = false;
  CheckpointBenchResult result_;
};

}  // namespace

CheckpointBenchResult measure_checkpoint(Group group, const CheckpointBenchPlan& plan) {
  return CheckpointMeasurement(std::move(group), plan).run();
}

}  // namespace lockstep

#include "bench/checkpoint/bench_checkpoint_measure.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <unistd.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/checkpoint.h>

#include "base/stopwatch.h"
#include "bench/checkpoint/bench_checkpoint_training.h"
#include "bench/checkpoint/bench_sync_save.h"
#include "bench/figures.h"

namespace lockstep {
namespace {

constexpr int kCalmSteps = 3;

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
        training_(group_, plan) {
    result_.num_ranks = group_.size();
    for (const NamedTensor& named : training_.state()) {
      result_.state_bytes += static_cast<int64_t>(named.tensor.nbytes());
    }
  }

  CheckpointBenchResult run() {
    for (int repeat = -1; repeat < plan_.repeats; ++repeat) {  // the first warms up
      is_counted_ = repeat >= 0;
      measure_training_saves();
      check();
      measure_save();
      measure_sync_saves(static_cast<size_t>(repeat + 1));
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

  // Returns whether any rank still saves.
  bool step() {
    training_.step(&writer_);
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
    std::vector<double> steps_s;
    bool is_busy = true;
    while (is_busy) {
      const base::Stopwatch watch;
      if (steps_s.empty()) {
        writer_.begin({.step = ++num_saves_}, training_.state());
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
      if (i + 1 == kSavesPerRepeat) {  // the one that check() looks at
        saved_checksums_ = training_.checksums();
        group_.barrier();
      }
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
    for (size_t i = 0; i < saved_checksums_.size(); ++i) {
      const NamedTensor& named = training_.state()[i];
      const std::vector<WeightTarget> target{{named.name, at::empty(named.tensor.sizes())}};
      checkpoint->load(target, group_);
      if (checksum_of(target[0].tensor) != saved_checksums_[i]) {
        throw InternalError("tensor {} of the checkpoint is not what was saved", named.name);
      }
    }
  }

  void measure_save() {
    group_.barrier();
    writer_.begin({.step = ++num_saves_}, training_.state());
    writer_.wait();
    add(result_.save_s, take_result().seconds);
  }

  // Their order changes, so that none of them profits from what the one before it left.
  void measure_sync_saves(size_t first) {
    for (size_t i = 0; i < std::size(kSyncSaves); ++i) {
      const SyncSave way = kSyncSaves[(first + i) % std::size(kSyncSaves)];
      const auto seconds = measure_sync_save(way);
      if (seconds) {
        add(result_.sync_s[way], *seconds);
      }
    }
  }

  // Returns nothing where the file system knows no direct writes.
  std::optional<double> measure_sync_save(SyncSave way) {
    const std::string path = folder_.at("sync.safetensors");
    bool is_saved = true;
    group_.barrier();
    const base::Stopwatch watch;
    if (group_.rank() == 0) {
      try {
        save_at_once(way, path, training_.state());
      } catch (const IoError&) {
        if (way != SyncSave::Direct) {
          throw;
        }
        is_saved = false;
      }
    }
    group_.barrier();
    const double seconds = watch.seconds();
    if (group_.rank() == 0) {
      if (is_saved && way != SyncSave::Library && !is_counted_) {
        check_saved(path, training_.state());
      }
      ::unlink(path.c_str());
    }
    group_.barrier();  // nobody goes on while rank 0 still checks or removes
    return is_saved ? std::optional(seconds) : std::nullopt;
  }

  void measure_disk() {
    if (group_.rank() == 0) {
      add(result_.disk_buffered_s, write_to_disk(false));
      try {
        add(result_.disk_direct_s, write_to_disk(true));
      } catch (const IoError&) {
        result_.disk_direct_s.clear();
      }
    }
    group_.barrier();
  }

  double write_to_disk(bool direct) {
    const std::string path = folder_.at("disk");
    const base::Stopwatch watch;
    write_plainly(path, result_.state_bytes, direct);
    const double seconds = watch.seconds();
    ::unlink(path.c_str());
    return seconds;
  }

  Group group_;
  const CheckpointBenchPlan plan_;
  BenchFolder folder_;
  CheckpointWriter writer_;
  CheckpointTraining training_;
  std::vector<uint32_t> saved_checksums_;
  int64_t num_saves_ = 0;
  bool is_counted_ = false;
  CheckpointBenchResult result_;
};

}  // namespace

CheckpointBenchResult measure_checkpoint(Group group, const CheckpointBenchPlan& plan) {
  return CheckpointMeasurement(std::move(group), plan).run();
}

}  // namespace lockstep

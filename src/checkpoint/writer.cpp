#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/checkpoint.h>

#include "base/cores.h"
#include "checkpoint/points.h"
#include "checkpoint/retention.h"
#include "checkpoint/save.h"
#include "checkpoint/shelf.h"
#include "weights/agree.h"

namespace lockstep {

namespace {

constexpr const char* kLatest = "latest";
constexpr const char* kBest = "best";

void check(const CheckpointInfo& info) {
  if (info.step < 0) {
    throw UsageError("checkpoint: step {} is negative", info.step);
  }
  manifest_text({.values = info.values});
  if (!info.attachments) {
    return;
  }
  if (info.attachments->size() > kMaxAttachments) {
    throw UsageError("checkpoint: {} attachments, the limit is {}; join some of them",
                     info.attachments->size(), kMaxAttachments);
  }
  for (const auto& [name, text] : *info.attachments) {
    if (!is_attachment_name(name)) {
      throw UsageError(
          "checkpoint: \"{}\" is no name of an attachment; use letters, digits, -, _ and ., not a "
          "dot in front, and at most 100 of them",
          name);
    }
    if (text.size() > kMaxAttachmentBytes) {
      throw UsageError(
          "checkpoint: attachment {} has {} bytes, the limit is {}; save it as a tensor", name,
          text.size(), kMaxAttachmentBytes);
    }
  }
}

// For a thread that saves. Ranks that fill the cores of a host meet after every step, and wait for
// the one that lost most time to the savers. Left alone these come to the cores unevenly, and the
// kernel moves ranks out of their way: three of four then shared a core. So each has one, in turn.
void take_core_in_turn(const Group& group) {
  const std::vector<int> ranks = group.local_ranks();
  const std::vector<int> cores = usable_cores();
  if (!cores.empty() && ranks.size() >= cores.size()) {
    const auto turn = std::find(ranks.begin(), ranks.end(), group.rank()) - ranks.begin();
    stay_on_core(cores[static_cast<size_t>(turn) % cores.size()]);
  }
}

}  // namespace

class CheckpointWriter::Impl {
 public:
  Impl(std::string location, const Group& group, CheckpointOptions options)
      : location_(std::move(location)), group_(group.split(0, group.rank())), options_(options) {
    throw_together(group_, caught([&] {
                     if (options.keep_last < 1 || options.keep_every.count() < 0) {
                       throw UsageError(
                           "checkpoint: keep_last is {} and keep_every {} minutes; at least one "
                           "checkpoint is kept, and no time is negative",
                           options.keep_last, options.keep_every.count());
                     }
                     place_ = make_place(location_);
                     if (group_.rank() == 0) {
                       read_kept();
                     }
                   }));
    sequence_ = static_cast<uint64_t>(gather_numbers(group_, static_cast<int64_t>(sequence_))[0]);
  }

  ~Impl() { join(); }

  void begin(CheckpointInfo info, const std::vector<NamedTensor>& tensors) {
    join();
    if (info.score && !std::isfinite(*info.score)) {
      info.score.reset();
    }
    std::vector<SavedTensor> saved;
    Share share;
    const auto error = caught([&] {
      check(info);
      saved = saved_tensors(tensors);
      share = make_share(saved, {.rank = group_.rank(), .size = group_.size()});
    });
    agree(error, info, saved);
    SavePlan plan{.step = info.step, .sequence = ++sequence_};
    for (const SavedTensor& tensor : saved) {
      plan.bytes += tensor.bytes;
    }
    if (info.attachments) {
      for (const auto& [name, text] : *info.attachments) {
        plan.bytes += text.size();
      }
    }
    save_ = std::make_unique<Save>(Save::Parts{group_, *place_, pool_}, std::move(info), plan,
                                   std::move(saved), std::move(share));
    is_busy_ = true;
    thread_ = std::thread([this] { run(); });
  }

  void wait_captured() {
    if (is_busy_) {
      save_->capture();
    }
  }

  void join() {
    if (thread_.joinable()) {
      thread_.join();
    }
    save_.reset();
  }

  std::vector<SaveResult> take_results() {
    const std::lock_guard lock(mutex_);
    return std::exchange(results_, {});
  }

  bool is_busy() const { return is_busy_; }

 private:
  // What is there counts for retention, unless it cannot be read: that is left alone.
  void read_kept() {
    const Shelf shelf = read_shelf(location_);
    if (shelf.is_single) {
      throw UsageError("checkpoint: {} is a checkpoint; give the folder that it is in", location_);
    }
    for (const ShelfEntry& entry : shelf.entries) {
      if (entry.problem.empty()) {
        kept_.push_back({.name = checkpoint_name(entry.step),
                         .sequence = entry.manifest.sequence,
                         .created_s = entry.manifest.created_s,
                         .score = entry.manifest.score});
        sequence_ = std::max(sequence_, entry.manifest.sequence);
      }
    }
  }

  // Collective, and one round of it when all is well.
  void agree(const std::exception_ptr& error, const CheckpointInfo& info,
             const std::vector<SavedTensor>& tensors) {
    constexpr int64_t kFailed = -1;
    const uint64_t mark = fingerprint_of(tensors) ^ static_cast<uint64_t>(info.step) * 0x9e3779b9u;
    const auto marks = gather_numbers(group_, error ? kFailed : static_cast<int64_t>(mark >> 1));
    if (std::find(marks.begin(), marks.end(), kFailed) != marks.end()) {
      throw_together(group_, error);
    }
    for (size_t i = 1; i < marks.size(); ++i) {
      if (marks[i] != marks[0]) {
        throw UsageError(
            "checkpoint: rank {} gives another step or other names, types or shapes of tensors "
            "than "
            "rank 0; give all ranks the same",
            i);
      }
    }
  }

  void run() {
    take_core_in_turn(group_);
    SaveResult result = save_->run();
    result.path = joined_location(location_, checkpoint_name(result.step));
    if (result.committed && group_.rank() == 0) {
      log::info("checkpoint", "{}: {:.1f} MB in {:.2f} s", result.path,
                static_cast<double>(result.bytes) / 1e6, result.seconds);
      try {
        tidy();
      } catch (const std::exception& error) {
        log::warn("checkpoint", "after step {}: {}", result.step, error.what());
      }
    }
    {
      const std::lock_guard lock(mutex_);
      results_.push_back(std::move(result));
    }
    is_busy_ = false;
  }

  // The new one is there: `latest` and `best` say so, and others may go.
  void tidy() {
    const std::string name = checkpoint_name(save_->plan().step);
    std::erase_if(kept_, [&](const KeptCheckpoint& kept) { return kept.name == name; });
    kept_.push_back({.name = name,
                     .sequence = save_->plan().sequence,
                     .created_s = save_->created_s(),
                     .score = save_->info().score});
    place_->point(kLatest, name);
    if (const KeptCheckpoint* best = best_of(kept_); best != nullptr && options_.keep_best) {
      place_->point(kBest, best->name);
    }
    pass(SavePoint::Committed);
    for (const std::string& old : superfluous(kept_, {.keep_last = options_.keep_last,
                                                     .keep_every = options_.keep_every,
                                                     .keep_best = options_.keep_best})) {
      place_->remove(old);
      std::erase_if(kept_, [&](const KeptCheckpoint& kept) { return kept.name == old; });
    }
  }

  const std::string location_;
  Group group_;  // one thread at a time: begin() waits for the one that saves
  const CheckpointOptions options_;
  std::unique_ptr<CheckpointPlace> place_;
  std::vector<KeptCheckpoint> kept_;  // of rank 0
  uint64_t sequence_ = 0;
  CopyPool pool_;
  std::unique_ptr<Save> save_;
  std::atomic<bool> is_busy_ = false;
  std::mutex mutex_;
  std::vector<SaveResult> results_;
  std::thread thread_;
};

CheckpointWriter::CheckpointWriter(std::string location, const Group& group,
                                   CheckpointOptions options)
    : impl_(std::make_unique<Impl>(std::move(location), group, options)) {}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::begin(CheckpointInfo info, const std::vector<NamedTensor>& tensors) {
  impl_->begin(std::move(info), tensors);
}

void CheckpointWriter::wait_captured() {
  impl_->wait_captured();
}

void CheckpointWriter::wait() {
  impl_->join();
}

std::vector<SaveResult> CheckpointWriter::take_results() {
  return impl_->take_results();
}

bool CheckpointWriter::is_busy() const {
  return impl_->is_busy();
}

}  // namespace lockstep

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <system_error>
#include <thread>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/checkpoint.h>

#include "base/process/cores.h"
#include "checkpoint/save.h"
#include "checkpoint_files/checkpoint_list.h"
#include "checkpoint_files/owner.h"
#include "checkpoint_files/points.h"
#include "checkpoint_files/retention.h"
#include "comm/agree.h"

namespace lockstep {

namespace {

void check(const CheckpointInfo& info) {
  if (info.step < 0) {
    throw UsageError("checkpoint: step {} is negative", info.step);
  }
  checkpoint_files::manifest_text({.values = info.values});
  if (!info.attachments) {
    return;
  }
  if (info.attachments->size() > checkpoint_files::kMaxAttachments) {
    throw UsageError("checkpoint: {} attachments, the limit is {}; join some of them",
                     info.attachments->size(), checkpoint_files::kMaxAttachments);
  }
  for (const auto& [name, text] : *info.attachments) {
    if (!checkpoint_files::is_attachment_name(name)) {
      throw UsageError(
          "checkpoint: \"{}\" cannot be the name of an attachment; use at most 100 letters, "
          "digits, -, _ and ., and no dot in front",
          name);
    }
    if (text.size() > checkpoint_files::kMaxAttachmentBytes) {
      throw UsageError(
          "checkpoint: attachment {} has {} bytes, the limit is {}; save it as a tensor", name,
          text.size(), checkpoint_files::kMaxAttachmentBytes);
    }
  }
}

// For a thread that saves. Ranks that fill the cores of a host meet after every step, and wait for
// the one that lost most time to the savers. Left alone these come to the cores unevenly, and the
// kernel moves ranks out of their way: three of four then shared a core. So each has one, in turn.
void take_core_in_turn(const Group& group) {
  const std::vector<int> ranks = group.local_ranks();
  const std::vector<int> cores = base::usable_cores();
  if (!cores.empty() && ranks.size() >= cores.size()) {
    const auto turn = std::find(ranks.begin(), ranks.end(), group.rank()) - ranks.begin();
    base::stay_on_core(cores[static_cast<size_t>(turn) % cores.size()]);
  }
}

}  // namespace

class CheckpointWriter::Impl {
 public:
  Impl(std::string location, const Group& group, CheckpointOptions options)
      : location_(std::move(location)), group_(group.split(0, group.rank())), options_(options) {
    comm::throw_together(
        group_, comm::caught([&] {
          if (options.keep_last < 1 || options.keep_every.count() < 0) {
            throw UsageError(
                "checkpoint: keep_last is {} and keep_every {} minutes; at least one "
                "checkpoint is kept, and no time is negative",
                options.keep_last, options.keep_every.count());
          }
          place_ = checkpoint_files::make_place(location_);
          if (group_.rank() == 0) {
            read_kept();  // refuses before anything is written
            owner_ = checkpoint_files::claim_place(location_);
            read_kept();  // until now another run may have saved
          }
        }));
    comm::throw_together(group_, comm::caught([&] { place_->probe(); }));
    sequence_ =
        static_cast<uint64_t>(comm::gather_numbers(group_, static_cast<int64_t>(sequence_))[0]);
  }

  ~Impl() { join(); }

  void begin(CheckpointInfo info, const std::vector<NamedTensor>& tensors) {
    join();
    if (info.score && !std::isfinite(*info.score)) {
      info.score.reset();
    }
    std::vector<checkpoint::SavedTensor> saved;
    checkpoint::Share share;
    checkpoint::DeviceSaves* device = nullptr;
    const auto error = comm::caught([&] {
      check(info);
      saved = checkpoint::saved_tensors(tensors);
      device = device_saves_of(saved);
      share = checkpoint::make_share(saved, {.rank = group_.rank(), .size = group_.size()});
    });
    agree(error, info, saved);
    checkpoint_files::SavePlan plan{.step = info.step, .sequence = ++sequence_};
    for (const checkpoint::SavedTensor& tensor : saved) {
      plan.bytes += tensor.bytes;
    }
    if (info.attachments) {
      for (const auto& [name, text] : *info.attachments) {
        plan.bytes += text.size();
      }
    }
    save_ = std::make_unique<checkpoint::Save>(
        checkpoint::Save::Parts{group_, *place_, pool_, owner_.get(), device}, std::move(info),
        plan, std::move(saved), std::move(share));
    is_busy_ = true;
    try {
      thread_ = std::thread([this] {
        take_core_in_turn(group_);
        run();
      });
    } catch (const std::system_error& refusal) {
      log::warn("checkpoint", "no thread to save step {} ({}): training waits for it", plan.step,
                refusal.what());
      run();  // the others count on this rank's share
    }
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
  // What is there counts for retention, unless it is damaged: that is left alone. Shards are looked
  // at when something is about to go.
  void read_kept() {
    const checkpoint_files::CheckpointList list = checkpoint_files::list_checkpoints(location_);
    if (list.is_single) {
      throw UsageError("checkpoint: {} is a checkpoint; give the folder that it is in", location_);
    }
    if (!options_.allow_existing && !list.entries.empty()) {
      throw UsageError(
          "checkpoint: {} holds {} already, the newest {}; those of a run that does not go on from "
          "them would mix with them: set checkpoint.dir to another place, remove them first, or go "
          "on from them (checkpoint.resume = true)",
          location_,
          list.entries.size() == 1 ? "a checkpoint"
                                   : fmt::format("{} checkpoints", list.entries.size()),
          list.entries[0].path);
    }
    checkpoint_files::check_pointers(location_);
    kept_.clear();
    for (const checkpoint_files::ListedCheckpoint& entry : list.entries) {
      if (entry.problem.empty()) {
        kept_.push_back({.name = checkpoint_files::checkpoint_name(entry.step),
                         .sequence = entry.manifest.sequence,
                         .created_s = entry.manifest.created_s,
                         .score = entry.manifest.score,
                         .is_sound = false});
        sequence_ = std::max(sequence_, entry.manifest.sequence);
      }
    }
  }

  checkpoint::DeviceSaves* device_saves_of(const std::vector<checkpoint::SavedTensor>& tensors) {
    const std::optional<at::Device> device = checkpoint::device_of(tensors);
    if (!device) {
      return nullptr;
    }
    if (!device_saves_ || device_saves_->device != *device) {
      const auto num_neighbours = static_cast<int>(group_.local_ranks().size());
      device_saves_.reset();  // its pinned memory, before there is more
      device_saves_ = std::make_unique<checkpoint::DeviceSaves>(
          *device, checkpoint::pinned_limit(checkpoint::host_memory(), num_neighbours));
    }
    return device_saves_.get();
  }

  // Collective, and one round of it when all is well.
  void agree(const std::exception_ptr& error, const CheckpointInfo& info,
             const std::vector<checkpoint::SavedTensor>& tensors) {
    constexpr int64_t kFailed = -1;
    const uint64_t mark =
        checkpoint::fingerprint_of(tensors) ^ static_cast<uint64_t>(info.step) * 0x9e3779b9u;
    const auto marks =
        comm::gather_numbers(group_, error ? kFailed : static_cast<int64_t>(mark >> 1));
    if (std::find(marks.begin(), marks.end(), kFailed) != marks.end()) {
      comm::throw_together(group_, error);
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
    SaveResult result = save_->run();
    result.path = checkpoint_files::joined_location(location_,
                                                    checkpoint_files::checkpoint_name(result.step));
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
    const std::string name = checkpoint_files::checkpoint_name(save_->plan().step);
    std::erase_if(kept_,
                  [&](const checkpoint_files::KeptCheckpoint& kept) { return kept.name == name; });
    kept_.push_back({.name = name,
                     .sequence = save_->plan().sequence,
                     .created_s = save_->created_s(),
                     .score = save_->info().score});
    place_->point(checkpoint_files::kLatestFile, name);
    const checkpoint_files::RetentionRules rules{.keep_last = options_.keep_last,
                                                 .keep_every = options_.keep_every,
                                                 .keep_best = options_.keep_best};
    std::vector<std::string> old = checkpoint_files::superfluous(kept_, rules);
    while (!old.empty() && forget_damaged(rules)) {
      old = checkpoint_files::superfluous(kept_, rules);
    }
    if (const checkpoint_files::KeptCheckpoint* best = checkpoint_files::best_of(kept_);
        best != nullptr && options_.keep_best) {
      place_->point(checkpoint_files::kBestFile, best->name);
    }
    checkpoint_files::pass(checkpoint_files::SavePoint::Committed);
    for (const std::string& superseded : old) {
      place_->remove(superseded);
      std::erase_if(kept_, [&](const checkpoint_files::KeptCheckpoint& kept) {
        return kept.name == superseded;
      });
    }
  }

  // Looks at the bytes of those that others would go for, unless this run wrote them. True if one
  // counts no more.
  bool forget_damaged(const checkpoint_files::RetentionRules& rules) {
    for (const std::string& name : checkpoint_files::relied_on(kept_, rules)) {
      const auto kept = std::find_if(
          kept_.begin(), kept_.end(),
          [&](const checkpoint_files::KeptCheckpoint& one) { return one.name == name; });
      if (kept->is_sound) {
        continue;
      }
      if (const std::string damage =
              checkpoint_files::damage_of(checkpoint_files::joined_location(location_, name));
          !damage.empty()) {
        log::warn("checkpoint", "{} is damaged and counts for nothing; remove it: {}",
                  checkpoint_files::joined_location(location_, name), damage);
        kept_.erase(kept);
        return true;
      }
      kept->is_sound = true;
    }
    return false;
  }

  const std::string location_;
  Group group_;  // one thread at a time: begin() waits for the one that saves
  const CheckpointOptions options_;
  std::unique_ptr<checkpoint_files::CheckpointPlace> place_;
  std::unique_ptr<checkpoint_files::PlaceOwner> owner_;  // of rank 0
  std::vector<checkpoint_files::KeptCheckpoint> kept_;   // of rank 0
  uint64_t sequence_ = 0;
  checkpoint::CopyPool pool_;
  std::unique_ptr<checkpoint::DeviceSaves> device_saves_;  // null until there is a device
  std::unique_ptr<checkpoint::Save> save_;
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

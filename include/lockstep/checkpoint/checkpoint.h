#pragma once

// Checkpoints that never lie: each exists whole or not at all, and one that is damaged is not used.
//
//   CheckpointWriter writer("runs/cats/checkpoints", group);
//   for (...) {
//     forward(); backward();
//     writer.wait_captured();                       // nothing to do unless a save is under way
//     optimizer.step();
//     if (step % 100 == 0) writer.begin({.step = step, .values = {{"config", toml}}}, tensors);
//   }
//   writer.wait();
//
//   if (auto checkpoint = find_checkpoint("runs/cats/checkpoints", group)) {
//     checkpoint->load(targets, group);             // on any number of ranks
//   }
//
// A checkpoint is a folder `step-00000100` with a shard of every rank, the files that the program
// attached and a manifest, which holds the checksums of all of it and of itself
// (docs/formats/checkpoint.md). Each rank writes its share of the bytes while training goes on; the
// folder gets its name when all of it is on the disk. On S3 the manifest is the last object.
// `latest` and `best` beside them hold the name of one.
//
// One run at a time writes to a folder, which a record in it makes sure of; all ranks must see it.
// Files of others in it, or in a checkpoint's folder, are left alone. docs/concepts/checkpoint.md
// tells what a save costs a training step and why.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/checkpoint_files/verify.h>
#include <lockstep/comm/group.h>
#include <lockstep/weights/save.h>
#include <lockstep/weights/weights.h>

namespace lockstep {

struct CheckpointInfo {
  int64_t step = 0;                           // >= 0
  std::map<std::string, std::string> values;  // small texts in UTF-8: the config, counters
  std::optional<double> score;                // higher is better; one that is not finite is none
  // Whole files that belong to the state, by name: a tokenizer, a configuration. Names of letters,
  // digits, "-", "_" and "."; at most 256 MiB each. Rank 0's are written. Null: none. What
  // find_checkpoint() gives has null: see Checkpoint::read_attachment().
  std::shared_ptr<const std::map<std::string, std::string>> attachments = nullptr;
};

struct CheckpointOptions {
  int64_t keep_last = 3;               // >= 1: so many of the newest stay
  std::chrono::minutes keep_every{0};  // beside these, one per so much time; 0: none
  bool keep_best = true;               // the one with the highest score stays too
  bool allow_existing = true;          // false: refuse a location that holds checkpoints already
};

// How a save ended: the same on every rank.
struct SaveResult {
  int64_t step = 0;
  bool committed = false;
  std::string error;   // why not; empty if it was
  std::string path;    // of the checkpoint
  uint64_t bytes = 0;  // of all shards and attachments
  double seconds = 0;  // from begin() to its end, on this rank
};

// Saves in the background, one at a time. A save that fails (a full disk, say) leaves nothing
// behind, is told by take_results() and the log, and harms neither training nor the next save.
// Older checkpoints are deleted only after a newer one is committed. A lost rank fails the save on
// all others; the writer is then of no more use.
// Threads: one at a time, the same one or not.
class CheckpointWriter {
 public:
  // Collective. `location`: a path or s3://bucket/prefix; made if it is not there, and every rank
  // writes and removes a file there. Throws IoError if one cannot, and UsageError if another run
  // writes there.
  CheckpointWriter(std::string location, const Group& group, CheckpointOptions options = {});
  ~CheckpointWriter();  // waits for the one under way
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Collective: the same step, names, types and shapes on every rank, and the same values: each
  // rank's share is its own, `info` is rank 0's. Dense CPU tensors. Returns at once, but waits
  // first for the save before this one.
  //
  // Tensors of less than 64 KiB are copied here: buffers such as BatchNorm's, which forward
  // changes. Larger ones are read until wait_captured() returns and must stay as they are until
  // then; a tensor that was changed before is seen by the checksums or is not, so do not.
  //
  // Throws UsageError, on all ranks, if they differ or a tensor cannot be saved, and CommError.
  void begin(CheckpointInfo info, const std::vector<NamedTensor>& tensors);

  // Returns when the tensors may change: what is not on its way to the disk has been copied. Call
  // it before every optimizer step. Not collective.
  void wait_captured();

  // Collective: returns when the last save has ended on all ranks.
  void wait();

  // Saves that ended since the last call. Not collective.
  std::vector<SaveResult> take_results();

  bool is_busy() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct OpenCheckpoint;  // of the implementation

// One checkpoint, opened for reading, whose bytes have been compared with their checksums. Cheap to
// copy.
class Checkpoint {
 public:
  const CheckpointInfo& info() const;
  const std::string& path() const;
  const std::vector<WeightInfo>& tensors() const;       // in the order of begin()
  const WeightInfo* find(std::string_view name) const;  // null: not there
  std::vector<std::string> attachments() const;         // their names

  // Collective: the bytes of one, read by rank 0. Throws UsageError if there is none of that name,
  // IoError and FormatError, on all ranks.
  std::string read_attachment(const std::string& name, Group& group) const;

  // Collective: fills the targets, dense CPU tensors, with the same bits on all ranks, whatever
  // number of ranks wrote them. Each byte is read by one rank. Throws UsageError for a name that is
  // not there or has another shape or type, IoError and FormatError, on all ranks.
  void load(std::span<const WeightTarget> targets, Group& group) const;

  // For the implementation.
  explicit Checkpoint(std::shared_ptr<const OpenCheckpoint> open) : open_(std::move(open)) {}

 private:
  std::shared_ptr<const OpenCheckpoint> open_;
};

// Collective; the ranks share the work of reading all of it. `location` is a folder of checkpoints:
// the newest that verifies, and each newer one that does not is told in the log as a warning with
// the reason; or one checkpoint (or the `latest` or `best` beside it): FormatError or IoError if it
// does not verify. Nothing if there is none at all; IoError if there are some and none verifies.
std::optional<Checkpoint> find_checkpoint(const std::string& location, Group& group);

}  // namespace lockstep

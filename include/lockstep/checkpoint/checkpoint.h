#pragma once

// Checkpoints of a training run. A checkpoint exists whole or not at all, and one that is damaged
// is never used.
//
// Example:
//   lockstep::CheckpointWriter writer("runs/cats/checkpoints", group);
//   for (int64_t step = 1; step <= num_steps; ++step) {
//     loss(ddp(batch.input), batch.target).backward();
//     writer.wait_captured();  // returns at once unless a save is under way
//     optimizer.step();
//     if (step % 100 == 0) {
//       writer.begin({.step = step, .values = {{"config", toml}}}, tensors);
//     }
//   }
//   writer.wait();
//
// Example:
//   if (auto checkpoint = lockstep::find_checkpoint("runs/cats/checkpoints", group)) {
//     checkpoint->load(targets, group);  // on any number of ranks
//   }
//
// A checkpoint is a folder `step-00000100`. It holds one shard per rank, the files that the program
// attached, and a manifest with the checksums of all of them and of itself
// (docs/formats/checkpoint.md). Each rank writes its share of the bytes while training continues,
// and the folder gets its name when all of it is on the disk. On S3 the manifest is the last object
// that is written. Beside the checkpoints lie `latest` and `best`, which hold the name of one.
//
// All ranks must see the folder, and one run at a time writes to it; a record in the folder keeps a
// second run out. Files of others, in the folder or in a checkpoint's own, are left alone.
// docs/concepts/checkpoint.md tells what a save costs a training step, and why.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/checkpoint_files/verify.h>
#include <lockstep/comm/group.h>
#include <lockstep/weights/save.h>
#include <lockstep/weights/weights.h>

namespace lockstep {

struct CheckpointInfo {
  int64_t step = 0;                           // >= 0
  std::map<std::string, std::string> values;  // short texts in UTF-8: the config, counters
  std::optional<double> score;                // higher is better; inf and NaN count as none
  // Whole files that belong to the state, by name: a tokenizer, a configuration. A name consists of
  // letters, digits, "-", "_" and "."; a file has at most 256 MiB. Those of rank 0 are written;
  // null means none. In what find_checkpoint() returns it is null: call
  // Checkpoint::read_attachment().
  std::shared_ptr<const std::map<std::string, std::string>> attachments = nullptr;
};

struct CheckpointOptions {
  int64_t keep_last = 3;               // >= 1: how many of the newest checkpoints are kept
  std::chrono::minutes keep_every{0};  // keeps one more for each such period; 0 keeps none
  bool keep_best = true;               // keeps the one with the highest score too
  bool allow_existing = true;          // false refuses a location that holds checkpoints already
};

// How a save ended. It is the same on every rank, except for `seconds`.
struct SaveResult {
  int64_t step = 0;
  bool committed = false;
  std::string error;   // why the save was not committed; empty if it was
  std::string path;    // the checkpoint's folder or prefix
  uint64_t bytes = 0;  // the size of all shards and attachments
  double seconds = 0;  // how long the save took on this rank, from begin() to its end
};

// Saves in the background, one checkpoint at a time. A save that fails, for example because the
// disk is full, leaves nothing behind. take_results() and the log report it; training and the next
// save are not affected. Older checkpoints are deleted only after a newer one is committed. A lost
// rank fails the save on all others, and the writer is unusable afterwards: make one over the new
// group.
//
// Threads: one thread at a time may use a writer, not always the same one. The writer has a thread
// and a group (a split of the one it is given) of its own.
class CheckpointWriter {
 public:
  // Collective. `location` is a path or s3://bucket/prefix and is made if it does not exist. Every
  // rank writes and removes a file there, as a probe. Throws IoError if a rank cannot do so, and
  // UsageError if an option is out of range or another run writes there; all ranks throw the same.
  CheckpointWriter(std::string location, const Group& group, CheckpointOptions options = {});
  ~CheckpointWriter();  // waits for the save that is under way
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Collective. Starts a save and returns; it first waits for the save before this one. All ranks
  // give the same step and dense tensors with the same names, types, shapes and values, since each
  // rank writes only its own share of them. They are on the CPU or on one GPU per rank. `info` is
  // taken from rank 0.
  //
  // Tensors below 64 KiB are copied during the call, because forward changes buffers such as those
  // of BatchNorm. Larger ones are read until wait_captured() has returned, so neither change nor
  // resize them before; a change is not always detected. The writer keeps the memory alive. On a
  // GPU all of this is meant in the order of the caller's current stream: the tensors are saved as
  // that stream leaves them, and what it is given later may change them.
  //
  // Throws UsageError, on all ranks, if the ranks' arguments differ or a tensor cannot be saved;
  // the writer stays usable. Throws CommError if a rank is lost.
  void begin(CheckpointInfo info, const std::vector<NamedTensor>& tensors);

  // Returns when the tensors may change: what has not reached the disk has been copied. Call it
  // before every optimizer step. It is not collective. For tensors of a GPU it makes the current
  // stream wait for the copies; the host waits only while pinned memory is lacking.
  void wait_captured();

  // Collective. Returns when the last save has ended on all ranks.
  void wait();

  // The saves that have ended since the last call. It is not collective.
  std::vector<SaveResult> take_results();

  // Whether a save is under way on this rank.
  bool is_busy() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct OpenCheckpoint;  // private to the implementation

// A checkpoint that was opened for reading. Its bytes have been compared with their checksums.
// It is cheap to copy: copies share what was read.
// Threads: const methods may be called concurrently, except for those that take a group.
class Checkpoint {
 public:
  const CheckpointInfo& info() const;
  const std::string& path() const;
  const std::vector<WeightInfo>& tensors() const;       // in the order in which begin() got them
  const WeightInfo* find(std::string_view name) const;  // null if there is no such tensor
  std::vector<std::string> attachments() const;         // the names of the attached files

  // Collective. Returns the bytes of one attachment, which rank 0 reads. Throws UsageError if there
  // is none with that name, IoError and FormatError; all ranks throw the same.
  std::string read_attachment(const std::string& name, Group& group) const;

  // Collective. Fills the targets, dense tensors of the CPU or a GPU, with the same bits on all
  // ranks, whatever the number of ranks that wrote them and their devices. Each byte is read by one
  // rank. Throws UsageError for a name that is not there or that has another shape or type, before
  // anything is written, and IoError or FormatError, after which the contents of the targets are
  // undefined. All ranks throw the same.
  void load(std::span<const WeightTarget> targets, Group& group) const;

  // Only find_checkpoint() calls this.
  explicit Checkpoint(std::shared_ptr<const OpenCheckpoint> open) : open_(std::move(open)) {}

 private:
  std::shared_ptr<const OpenCheckpoint> open_;
};

// Collective. Opens a checkpoint; the ranks share the work of reading all of it. `location` is
// either a folder of checkpoints or one checkpoint (or the `latest` or `best` beside it).
//   - In a folder it opens the newest checkpoint that verifies. Each newer one that does not is
//     reported in the log as a warning with the reason. If there is no checkpoint it returns
//     nothing; if there are some and none verifies it throws IoError.
//   - If `location` is one checkpoint that does not verify it throws FormatError or IoError.
// All ranks return, or throw, the same.
std::optional<Checkpoint> find_checkpoint(const std::string& location, Group& group);

}  // namespace lockstep

#pragma once

// Where a save puts its shards and its manifest: a folder, or a bucket. What is not committed is
// not there.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace lockstep::checkpoint_files {

// One shard being written, by one rank.
class ShardSink {
 public:
  virtual ~ShardSink() = default;

  // Adds bytes after those that came before. They go past the page cache where memory and sizes are
  // of whole pages and the file system can do it.
  virtual void append(std::span<const std::byte> bytes) = 0;
  virtual void finish() = 0;  // it is on the disk
};

// What all ranks know of a save.
struct SavePlan {
  int64_t step = 0;
  uint64_t sequence = 0;
  uint64_t bytes = 0;  // of all tensors and attachments
};

// One save at a time. prepare(), commit(), abort() and remove() are rank 0's; in this order the
// ranks agree between each of them. Nothing is deleted but what is_own_file().
class CheckpointPlace {
 public:
  virtual ~CheckpointPlace() = default;

  // Every rank's, when rank 0 has claimed the place: writes a file and removes it. Throws IoError.
  virtual void probe() = 0;

  // Removes what killed saves left and makes room for this one. Throws IoError, "no space for
  // checkpoint step 100, 3.1 GB needed, 1.2 GB free in PATH".
  virtual void prepare(const SavePlan& save) = 0;

  virtual std::string shard_file(const SavePlan& save, int rank, int size) const = 0;
  virtual std::string attachment_file(const SavePlan& save, const std::string& name) const = 0;

  // Of an attachment too. Takes the room for `bytes` first.
  virtual std::unique_ptr<ShardSink> open_shard(const SavePlan& save, const std::string& file,
                                                uint64_t bytes) = 0;

  // From here on it is there. A checkpoint of the same step is replaced.
  virtual void commit(const SavePlan& save, const std::string& manifest) = 0;

  // Leaves nothing of a save that was not committed.
  virtual void abort(const SavePlan& save) = 0;

  virtual void remove(const std::string& name) = 0;  // a checkpoint

  // `latest` and `best`: a small file with the name of a checkpoint.
  virtual void point(const std::string& pointer, const std::string& name) = 0;
};

std::unique_ptr<CheckpointPlace> make_place(const std::string& location);

// The two kinds of a place.
std::unique_ptr<CheckpointPlace> make_folder_place(const std::string& folder);
std::unique_ptr<CheckpointPlace> make_remote_place(const std::string& location);

// A file of its own, with room taken first. Throws IoError.
std::unique_ptr<ShardSink> make_direct_file(const std::string& path, uint64_t bytes);

}  // namespace lockstep::checkpoint_files

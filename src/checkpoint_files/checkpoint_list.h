#pragma once

// The checkpoints at a location: which there are, what they say of themselves, whether it is true.

#include <memory>
#include <string>
#include <vector>

#include "checkpoint_files/manifest.h"
#include "storage/storage.h"

namespace lockstep::checkpoint_files {

// "step-00000100".
std::string checkpoint_name(int64_t step);

// 100 for "step-00000100"; nothing for another name.
std::optional<int64_t> step_of(std::string_view name);

// Small files beside the checkpoints that hold the name of one, for people.
inline constexpr const char* kLatestFile = "latest";
inline constexpr const char* kBestFile = "best";

// Throws UsageError if one of them is there and lockstep has not written it: a save would replace
// it.
void check_pointers(const std::string& location);

// "folder/name", whatever the folder ends with.
std::string joined_location(const std::string& folder, const std::string& name);

struct ListedCheckpoint {
  std::string path;     // "runs/cats/step-00000100"
  int64_t step = -1;    // as the name says, or the manifest; -1: neither does
  std::string text;     // of the manifest; empty if it cannot be read
  Manifest manifest;    // empty if `problem` is not
  std::string problem;  // why the manifest cannot be used
};

struct CheckpointList {
  bool is_single = false;                 // the location is one checkpoint, not a folder of them
  std::vector<ListedCheckpoint> entries;  // those that cannot be read, then the newest first
};

// Reads manifests only. `location` may also be a `latest` or `best`. A folder that is not there is
// empty. Throws IoError if it cannot be listed, or is a checkpoint that was never committed.
CheckpointList list_checkpoints(const std::string& location);

// Reads file number `which` (Manifest::file()) whole. Throws FormatError if it is not what was
// written, and IoError.
void verify_file(const std::string& path, const Manifest& manifest, size_t which);

// Why the checkpoint at `path` cannot be relied on; empty: it can. In a folder all bytes are read;
// in a bucket, which keeps checksums of its own, the manifest and the sizes of its files.
std::string damage_of(const std::string& path);

}  // namespace lockstep::checkpoint_files

#pragma once

// What a checkpoint is held against: saves by one process for which all others wait. Each is safe:
// the file has its name only when all of it is on the disk.

#include <cstddef>
#include <string>
#include <vector>

#include <lockstep/weights/save.h>

namespace lockstep {

enum class SyncSave {
  Library,   // save_weights(), as it comes
  Buffered,  // large writes from the tensors' own memory into the page cache, then fsync
  Direct     // past the page cache: one half of a buffer is filled while the other is written
};

inline constexpr SyncSave kSyncSaves[] = {SyncSave::Library, SyncSave::Buffered, SyncSave::Direct};

// Saves the state as a safetensors file. Throws IoError, also where the file system knows no direct
// writes.
void save_at_once(SyncSave way, const std::string& path, const std::vector<NamedTensor>& state);

// Throws InternalError unless the file ends in the bytes of the tensors, one after another, as
// Buffered and Direct have written them.
void check_saved(const std::string& path, const std::vector<NamedTensor>& state);

// Writes `num_bytes` of no meaning, one large write after another, and syncs them.
void write_plainly(const std::string& path, int64_t num_bytes, bool direct);

}  // namespace lockstep

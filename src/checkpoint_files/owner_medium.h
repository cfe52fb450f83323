#pragma once

// Where the record of who writes to a place is kept: a file in a folder, or an object in a bucket.

#include <memory>
#include <optional>
#include <string>

namespace lockstep::checkpoint_files {

enum class OwnerLock {
  Ours,
  Others,   // somebody holds it, and so lives
  NoLocks,  // a bucket, or a file system without locks
};

// Each throws IoError. Threads: not thread-safe.
class OwnerMedium {
 public:
  virtual ~OwnerMedium() = default;  // unlocks; what was written stays

  virtual OwnerLock lock() = 0;  // kept until the end

  // The owner's record; nothing if there is none or it is empty.
  virtual std::optional<std::string> read() const = 0;

  // `is_first`: there was none; false if there is one after all, as far as the medium can tell.
  virtual bool write(const std::string& text, bool is_first) = 0;

  // And folders that were made for it, if nothing else is in them.
  virtual void remove() = 0;
};

std::unique_ptr<OwnerMedium> make_owner_medium(const std::string& location);

}  // namespace lockstep::checkpoint_files

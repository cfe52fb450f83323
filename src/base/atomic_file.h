#pragma once

// A file that appears whole or not at all: written beside its place, synced, renamed.
// write_file_atomically() does the same for a text; this is for files that do not fit in memory.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace lockstep::base {

// How the name of a file ends that lockstep has not finished writing, and no other file's: a killed
// process leaves it, and who lists a folder passes over it.
inline constexpr std::string_view kUnfinishedEnd = ".lockstep-part";

// "PATH.RANDOM.lockstep-part": where to write what becomes PATH. A new one each time: a process of
// another PID namespace or another host has the same number often, and the same folder at times.
std::string unfinished_path(const std::string& path);

class AtomicFile {
 public:
  // Throws IoError if nothing can be written beside `path`.
  explicit AtomicFile(std::string path);
  // Without commit() the old file stays as it was and what was written is deleted.
  ~AtomicFile();
  AtomicFile(AtomicFile&&) = delete;

  void append(std::span<const std::byte> bytes);
  void append(std::string_view bytes) { append(std::as_bytes(std::span(bytes))); }
  uint64_t size() const { return size_; }  // so far

  void commit();

 private:
  std::string path_;
  std::string beside_;
  UniqueFd fd_;
  uint64_t size_ = 0;
};

}  // namespace lockstep::base

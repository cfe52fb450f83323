#pragma once

// Brings files from slow or distant storage to a folder of this host, once.

#include <cstdint>
#include <mutex>
#include <set>
#include <string>

namespace lockstep::storage {

// The files that are being written: who is told to end removes them. Threads: thread-safe.
class UnfinishedFiles {
 public:
  void add(const std::string& path);
  void remove(const std::string& path);  // it is finished, or nobody's any more
  void delete_all() noexcept;            // from the disk too; later ones are not taken note of

 private:
  std::mutex mutex_;
  std::set<std::string> paths_;
  bool is_over_ = false;
};

struct FetchOptions {
  int num_threads = 8;                    // >= 1: that read and write at the same time
  UnfinishedFiles* unfinished = nullptr;  // kept up to date, if given
};

struct FetchReport {
  size_t num_files = 0;    // that are there now
  size_t num_skipped = 0;  // of them: they were there before
  uint64_t bytes_copied = 0;
};

// `source`: a file or a folder (see open_storage()), `destination`: a path here. A file goes to
// that path, or into it if it is a folder or ends with a slash; the files of a folder go into it.
// Missing folders are made.
//
// Each file is read in parallel, written beside its place, read again and compared (XXH3 of every
// chunk) and renamed. If the source has a file NAME.sha256 beside NAME, its SHA-256 must hold too.
// A file that is there is left alone if ".NAME.fetched" beside it says that it came from this
// source in its present version, and it still has the size and the time of then, or the checksum.
// Two processes of a host that fetch the same file do so one after the other: the second finds it
// there.
//
// Throws UsageError and IoError, which name the file.
FetchReport fetch(const std::string& source, const std::string& destination,
                  const FetchOptions& options = {});

}  // namespace lockstep::storage

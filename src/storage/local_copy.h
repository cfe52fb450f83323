#pragma once

// One file being fetched: its place, the file beside it that is written, and what is known of an
// earlier copy.

#include <optional>
#include <string>
#include <vector>

#include "base/byte_source.h"
#include "storage/fetch.h"

namespace lockstep::storage {

inline constexpr size_t kFetchChunk = 8u << 20;  // read, written and checksummed at a time

// Of a copy, in ".NAME.fetched" beside it.
struct FetchStamp {
  std::string source;   // its location
  std::string version;  // ObjectInfo::version then
  uint64_t size_bytes = 0;
  std::string modified;  // of the copy: ObjectInfo::version of a file
  std::string xxh3;      // over the XXH3 of its chunks
  std::string sha256;    // empty: none was asked for

  static std::string path_for(const std::string& file);
  static std::optional<FetchStamp> read(const std::string& file);  // nothing if it is none
  void write(const std::string& file) const;
};

// The XXH3 of each chunk, in order.
std::vector<uint64_t> chunk_sums(const base::ByteSource& file, int num_threads);

// The XXH3 of these, as 16 digits.
std::string sum_text(const std::vector<uint64_t>& sums);

// "NAME.HOST.lockstep-part", locked: another process of this host that fetches NAME waits. What a
// killed one left there is written over. Destroyed without commit(), it leaves nothing.
class PartFile {
 public:
  PartFile(const std::string& file, UnfinishedFiles* unfinished);
  ~PartFile();
  PartFile(const PartFile&) = delete;

  const std::string& path() const { return path_; }
  void resize(uint64_t size);  // takes the room on the disk
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  void commit(int mode);  // sync, rename to NAME; the lock stays, for the stamp to be written

 private:
  bool lock();

  const std::string file_;
  const std::string path_;
  UnfinishedFiles* const unfinished_;
  base::UniqueFd fd_;
  bool is_committed_ = false;
};

}  // namespace lockstep::storage

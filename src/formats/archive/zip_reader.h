#pragma once

// The zip container of torch.save and numpy.savez: stored records (deflated ones only for those who
// ask), never encrypted, on one disk. Offsets come from the central directory and are compared with
// the local headers.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/byte_source.h"

namespace lockstep::formats {

struct ZipEntry {
  std::string name;
  uint64_t header_offset = 0;  // of the local header
  uint64_t data_offset = 0;
  uint64_t size_bytes = 0;
  uint32_t crc = 0;
  bool is_deflated = false;
  uint64_t deflated_bytes = 0;  // in the file, if it is

  uint64_t file_bytes() const { return is_deflated ? deflated_bytes : size_bytes; }
};

struct ZipLimits {
  uint64_t num_entries = 200'000;
  uint64_t directory_bytes = 100'000'000;
  bool may_deflate = false;  // then verify() and read() are only for records that are not
};

class ZipReader {
 public:
  // Reads the directory and checks: one end record at the very end, directory right before it;
  // names relative, without "..", each once; every record inside the file, none over another;
  // stored, not deflated unless it may be; local headers that say the same. Throws FormatError.
  // `source` must outlive this.
  explicit ZipReader(const base::ByteSource& source, const ZipLimits& limits = {});
  ZipReader(ZipReader&&) = delete;

  const std::vector<ZipEntry>& entries() const { return entries_; }  // as in the directory
  const base::ByteSource& source() const { return source_; }
  const ZipEntry* find(std::string_view name) const;  // null: not there

  // False if every CRC is 0, which is how torch writes a file without checksums.
  bool has_checksums() const { return has_checksums_; }

  // Throws FormatError if the bytes are not those that were written; does nothing in a file without
  // checksums.
  void verify(const ZipEntry& entry) const;

  // The same for one who has read the bytes.
  void check_crc(const ZipEntry& entry, uint32_t crc) const;

  // What the record holds, verified. Throws FormatError if that is more than `max_bytes`.
  std::string read(const ZipEntry& entry, uint64_t max_bytes) const;

 private:
  void read_directory(const ZipLimits& limits);
  void index_names();
  void check_overlaps() const;

  const base::ByteSource& source_;
  std::vector<ZipEntry> entries_;
  std::unordered_map<std::string_view, const ZipEntry*> by_name_;
  uint64_t directory_offset_ = 0;
  bool has_checksums_ = false;
};

}  // namespace lockstep::formats

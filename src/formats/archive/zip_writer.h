#pragma once

// Writes a zip as torch.save does: stored records, each aligned by an extra field "FB", CRC-32 and
// sizes after the data and in the directory, and always ZIP64 end records.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"
#include "formats/archive/zip_reader.h"

namespace lockstep::formats {

class ZipWriter {
 public:
  // `alignment` of the first byte of every record: 64 as torch, or 4096 to read past the page
  // cache.
  explicit ZipWriter(std::string path, uint64_t alignment = 64);

  // One record: begin, append in pieces of any size, end. Throws IoError.
  void begin(std::string name);
  void append(std::span<const std::byte> bytes);
  void end();
  void add(std::string name, std::string_view bytes);

  // Writes the directory; the file is there afterwards.
  void finish();

 private:
  base::AtomicFile file_;
  uint64_t alignment_;
  std::vector<ZipEntry> entries_;
};

namespace zip {

// The records as bytes; values that do not fit go into ZIP64 fields.
std::string local_header(const ZipEntry& entry, uint64_t alignment);
std::string descriptor(const ZipEntry& entry);
std::string central_record(const ZipEntry& entry);
std::string end_records(uint64_t num_entries, uint64_t directory_offset, uint64_t directory_end);

}  // namespace zip

}  // namespace lockstep::formats

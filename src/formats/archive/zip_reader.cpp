#include "formats/archive/zip_reader.h"

#include <algorithm>

#include <lockstep/base/error.h>

#include "formats/archive/crc32.h"
#include "formats/archive/zip_format.h"
#include "formats/little_endian.h"
#include "formats/tensor_info.h"

namespace lockstep::formats {

namespace {

using namespace zip;

constexpr const char* kTorn = "it is truncated or not a zip file";

struct Directory {
  uint64_t offset = 0;
  uint64_t size = 0;
  uint64_t num_entries = 0;
  uint64_t end = 0;  // where the end records begin: the directory must reach just to there
};

// The ZIP64 pair before the end record, if there is one; torch writes it into every file.
bool read_end64(const base::ByteSource& source, Directory& directory) {
  const uint64_t end = source.size() - kEndBytes;
  if (end < kLocatorBytes + kEnd64Bytes) {
    return false;
  }
  const std::string locator = source.read_text(end - kLocatorBytes, kLocatorBytes);
  if (!locator.starts_with(kLocatorSignature)) {
    return false;
  }
  const uint64_t place = end - kLocatorBytes - kEnd64Bytes;
  const std::string record = source.read_text(place, kEnd64Bytes);
  if (number_at<uint64_t>(locator, 8) != place || number_at<uint32_t>(locator, 4) != 0 ||
      number_at<uint32_t>(locator, 16) != 1 || !record.starts_with(kEnd64Signature) ||
      number_at<uint64_t>(record, 4) != kEnd64Bytes - 12 || number_at<uint32_t>(record, 16) != 0 ||
      number_at<uint32_t>(record, 20) != 0 ||
      number_at<uint64_t>(record, 24) != number_at<uint64_t>(record, 32)) {
    throw FormatError("{}: the ZIP64 end records at offset {} contradict each other", source.name(),
                      place);
  }
  directory = {.offset = number_at<uint64_t>(record, 48),
               .size = number_at<uint64_t>(record, 40),
               .num_entries = number_at<uint64_t>(record, 32),
               .end = place};
  return true;
}

Directory find_directory(const base::ByteSource& source) {
  if (source.size() < kEndBytes) {
    throw FormatError("{}: no end record in {} bytes; {}", source.name(), source.size(), kTorn);
  }
  const uint64_t end = source.size() - kEndBytes;
  const std::string record = source.read_text(end, kEndBytes);
  const auto num_entries = number_at<uint16_t>(record, 10);
  const auto size = number_at<uint32_t>(record, 12);
  const auto offset = number_at<uint32_t>(record, 16);
  // Without a comment there is one place for this record, and no second zip in the comment.
  if (!record.starts_with(kEndSignature) || number_at<uint32_t>(record, 4) != 0 ||
      number_at<uint16_t>(record, 8) != num_entries || number_at<uint16_t>(record, 20) != 0) {
    throw FormatError("{}: no end record in the last {} bytes; {}", source.name(), kEndBytes,
                      kTorn);
  }
  Directory directory{.offset = offset, .size = size, .num_entries = num_entries, .end = end};
  if (read_end64(source, directory)) {
    if ((offset != kIn64 && offset != directory.offset) ||
        (size != kIn64 && size != directory.size) ||
        (num_entries != kIn64Short && num_entries != directory.num_entries)) {
      throw FormatError("{}: the end record and its ZIP64 form contradict each other",
                        source.name());
    }
  }
  if (checked_add(directory.offset, directory.size) != directory.end) {
    throw FormatError(
        "{}: the directory (offset {}, {} bytes) does not end at the end records, "
        "offset {}",
        source.name(), directory.offset, directory.size, directory.end);
  }
  return directory;
}

// Sizes and offset that did not fit stand in the ZIP64 extra field, in this order.
void read_zip64_extra(std::string_view extra, ZipEntry& entry, uint64_t& compressed) {
  while (extra.size() >= 4) {
    const auto id = number_at<uint16_t>(extra, 0);
    const auto length = number_at<uint16_t>(extra, 2);
    extra.remove_prefix(4);
    if (length > extra.size()) {
      return;
    }
    if (id == kExtraZip64) {
      std::string_view rest = extra.substr(0, length);
      for (uint64_t* value : {&entry.size_bytes, &compressed, &entry.header_offset}) {
        if (*value == kIn64 && rest.size() >= 8) {
          *value = number_at<uint64_t>(rest, 0);
          rest.remove_prefix(8);
        }
      }
    }
    extra.remove_prefix(length);
  }
}

// One record of the directory, at the front of `bytes`, which it is taken from.
ZipEntry take_entry(const std::string& file, std::string_view& bytes, uint64_t offset,
                    bool may_deflate) {
  if (bytes.size() < kCentralBytes || !bytes.starts_with(kCentralSignature)) {
    throw FormatError("{}: no record of the directory at offset {}", file, offset);
  }
  const uint64_t name_length = number_at<uint16_t>(bytes, 28);
  const uint64_t extra_length = number_at<uint16_t>(bytes, 30);
  const uint64_t length =
      kCentralBytes + name_length + extra_length + number_at<uint16_t>(bytes, 32);
  if (length > bytes.size()) {
    throw FormatError("{}: the record of the directory at offset {} ends beyond it", file, offset);
  }
  ZipEntry entry{.name = std::string(bytes.substr(kCentralBytes, name_length)),
                 .header_offset = number_at<uint32_t>(bytes, 42),
                 .size_bytes = number_at<uint32_t>(bytes, 24),
                 .crc = number_at<uint32_t>(bytes, 16)};
  uint64_t compressed = number_at<uint32_t>(bytes, 20);
  read_zip64_extra(bytes.substr(kCentralBytes + name_length, extra_length), entry, compressed);
  const auto flags = number_at<uint16_t>(bytes, 8);
  const auto method = number_at<uint16_t>(bytes, 10);
  const bool is_stored = method == kStored && compressed == entry.size_bytes;
  entry.is_deflated = method == kDeflated;
  entry.deflated_bytes = entry.is_deflated ? compressed : 0;
  if ((flags & kFlagEncrypted) != 0 || !(is_stored || (may_deflate && entry.is_deflated)) ||
      number_at<uint16_t>(bytes, 34) != 0) {
    throw FormatError(
        "{}: record {} (directory at offset {}) is compressed, encrypted or split "
        "(method {}, flags {:#x}); save the file without compression (numpy.savez, not "
        "savez_compressed){}",
        file, base::shown(entry.name), offset, method, flags,
        entry.is_deflated ? ", or rewrite it by lockstep inspect --convert" : "");
  }
  bytes.remove_prefix(length);
  return entry;
}

// Where the data begins stands only in the local header.
void read_local_header(const base::ByteSource& source, ZipEntry& entry, uint64_t directory_offset) {
  const auto fail = [&](const char* what) {
    throw FormatError("{}: record {}: its header at offset {} {}", source.name(),
                      base::shown(entry.name), entry.header_offset, what);
  };
  const uint64_t name_end = kLocalBytes + entry.name.size();
  if (entry.header_offset > directory_offset || name_end > directory_offset - entry.header_offset) {
    fail("is not before the directory");
  }
  const std::string header = source.read_text(entry.header_offset, name_end);
  const auto flags = number_at<uint16_t>(header, 6);
  const uint16_t method = entry.is_deflated ? kDeflated : kStored;
  const bool is_later = (flags & kFlagDescriptor) != 0;
  const auto agrees = [&](size_t offset, uint64_t value) {
    const auto local = number_at<uint32_t>(header, offset);
    return local == value || local == kIn64 || (is_later && local == 0);
  };
  if (!header.starts_with(kLocalSignature) || number_at<uint16_t>(header, 8) != method ||
      (flags & kFlagEncrypted) != 0 || number_at<uint16_t>(header, 26) != entry.name.size() ||
      header.substr(kLocalBytes) != entry.name || !agrees(18, entry.file_bytes()) ||
      !agrees(22, entry.size_bytes) ||
      (number_at<uint32_t>(header, 14) != entry.crc && !is_later)) {
    fail("is not there or contradicts the directory");
  }
  entry.data_offset = entry.header_offset + name_end + number_at<uint16_t>(header, 28);
  if (entry.data_offset > directory_offset ||
      entry.file_bytes() > directory_offset - entry.data_offset) {
    fail("leads beyond the directory");
  }
}

bool is_safe_name(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\0') != name.npos ||
      name.find('\\') != name.npos) {
    return false;
  }
  while (!name.empty()) {
    const size_t slash = std::min(name.find('/'), name.size());
    if (name.substr(0, slash) == "..") {
      return false;
    }
    name.remove_prefix(std::min(slash + 1, name.size()));
  }
  return true;
}

}  // namespace

ZipReader::ZipReader(const base::ByteSource& source, const ZipLimits& limits) : source_(source) {
  read_directory(limits);
  index_names();
  for (ZipEntry& entry : entries_) {
    read_local_header(source_, entry, directory_offset_);
    has_checksums_ |= entry.crc != 0;
  }
  check_overlaps();
}

void ZipReader::read_directory(const ZipLimits& limits) {
  const Directory directory = find_directory(source_);
  if (directory.num_entries > limits.num_entries || directory.size > limits.directory_bytes) {
    throw FormatError("{}: {} records in a directory of {} bytes; the limits are {} and {}",
                      source_.name(), directory.num_entries, directory.size, limits.num_entries,
                      limits.directory_bytes);
  }
  directory_offset_ = directory.offset;
  const std::string text = source_.read_text(directory.offset, directory.size);
  std::string_view rest = text;
  for (uint64_t i = 0; i < directory.num_entries; ++i) {
    entries_.push_back(
        take_entry(source_.name(), rest, directory.end - rest.size(), limits.may_deflate));
  }
  if (!rest.empty()) {
    throw FormatError("{}: {} bytes at offset {} of the directory belong to no record",
                      source_.name(), rest.size(), directory.end - rest.size());
  }
}

void ZipReader::index_names() {
  for (const ZipEntry& entry : entries_) {
    if (!is_safe_name(entry.name)) {
      throw FormatError("{}: record {} has a name that is empty or leads out of the archive",
                        source_.name(), base::shown(entry.name));
    }
    if (!by_name_.emplace(entry.name, &entry).second) {
      throw FormatError("{}: record {} is there twice; which of them is meant?", source_.name(),
                        base::shown(entry.name));
    }
  }
}

void ZipReader::check_overlaps() const {
  std::vector<const ZipEntry*> sorted;
  for (const ZipEntry& entry : entries_) {
    sorted.push_back(&entry);
  }
  std::sort(sorted.begin(), sorted.end(), [](const ZipEntry* a, const ZipEntry* b) {
    return a->header_offset < b->header_offset;
  });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i]->header_offset < sorted[i - 1]->data_offset + sorted[i - 1]->file_bytes()) {
      throw FormatError("{}: record {} at offset {} overlaps {}", source_.name(),
                        base::shown(sorted[i]->name), sorted[i]->header_offset,
                        base::shown(sorted[i - 1]->name));
    }
  }
}

const ZipEntry* ZipReader::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

void ZipReader::check_crc(const ZipEntry& entry, uint32_t crc) const {
  if (has_checksums_ && crc != entry.crc) {
    throw FormatError(
        "{}: record {} (offset {}, {} bytes) has the CRC-32 {:08x}, and {:08x} was "
        "written: it is damaged; copy the file again",
        source_.name(), base::shown(entry.name), entry.data_offset, entry.size_bytes, crc,
        entry.crc);
  }
}

void ZipReader::verify(const ZipEntry& entry) const {
  if (has_checksums_) {
    check_crc(entry, crc32_of(source_, entry.data_offset, entry.size_bytes));
  }
}

std::string ZipReader::read(const ZipEntry& entry, uint64_t max_bytes) const {
  if (entry.size_bytes > max_bytes) {
    throw FormatError("{}: record {} has {} bytes, the limit is {}", source_.name(),
                      base::shown(entry.name), entry.size_bytes, max_bytes);
  }
  std::string text = source_.read_text(entry.data_offset, entry.size_bytes);
  check_crc(entry, crc32(0, std::as_bytes(std::span(text))));
  return text;
}

}  // namespace lockstep::formats

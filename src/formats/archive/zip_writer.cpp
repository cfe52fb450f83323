#include "formats/archive/zip_writer.h"

#include <algorithm>

#include <lockstep/base/error.h>

#include "base/round.h"
#include "formats/archive/crc32.h"
#include "formats/archive/zip_format.h"
#include "formats/little_endian.h"

namespace lockstep::formats {

namespace zip {

namespace {

constexpr uint16_t kVersion64 = 45;      // "needs ZIP64"
constexpr uint16_t kDate = 1 << 5 | 1;   // 1980-01-01, so that equal weights give equal files
constexpr uint64_t kExtraHeadBytes = 4;  // id and length

uint32_t short_form(uint64_t value) {
  return value >= kIn64 ? kIn64 : static_cast<uint32_t>(value);
}

bool is_large(const ZipEntry& entry) {
  return entry.size_bytes >= kIn64 || entry.header_offset >= kIn64;
}

// What local header and directory have in common: flags, method, time, date, CRC, sizes.
void append_common(std::string& bytes, uint32_t crc, uint32_t size) {
  append_number<uint16_t>(bytes, kFlagDescriptor | kFlagUtf8);
  append_number<uint32_t>(bytes, 0);  // stored; midnight
  append_number<uint16_t>(bytes, kDate);
  append_number<uint32_t>(bytes, crc);
  append_number<uint32_t>(bytes, size);
  append_number<uint32_t>(bytes, size);
}

}  // namespace

std::string local_header(const ZipEntry& entry, uint64_t alignment) {
  const uint64_t head = entry.header_offset + kLocalBytes + entry.name.size() + kExtraHeadBytes;
  const uint64_t padding = base::rounded_up(head, alignment) - head;
  std::string bytes(kLocalSignature);
  append_number<uint16_t>(bytes, kVersion64);
  append_common(bytes, 0, 0);
  append_number<uint16_t>(bytes, static_cast<uint16_t>(entry.name.size()));
  append_number<uint16_t>(bytes, static_cast<uint16_t>(kExtraHeadBytes + padding));
  bytes += entry.name;
  bytes += "FB";
  append_number<uint16_t>(bytes, static_cast<uint16_t>(padding));
  return bytes + std::string(padding, 'Z');
}

std::string descriptor(const ZipEntry& entry) {
  std::string bytes(kDescriptorSignature);
  append_number<uint32_t>(bytes, entry.crc);
  for (int i = 0; i < 2; ++i) {
    if (is_large(entry)) {
      append_number<uint64_t>(bytes, entry.size_bytes);
    } else {
      append_number<uint32_t>(bytes, static_cast<uint32_t>(entry.size_bytes));
    }
  }
  return bytes;
}

std::string central_record(const ZipEntry& entry) {
  std::string extra;
  for (const uint64_t value : {entry.size_bytes, entry.size_bytes, entry.header_offset}) {
    if (value >= kIn64) {
      append_number<uint64_t>(extra, value);
    }
  }
  std::string bytes(kCentralSignature);
  append_number<uint16_t>(bytes, kVersion64);
  append_number<uint16_t>(bytes, kVersion64);
  append_common(bytes, entry.crc, short_form(entry.size_bytes));
  append_number<uint16_t>(bytes, static_cast<uint16_t>(entry.name.size()));
  append_number<uint16_t>(
      bytes, static_cast<uint16_t>(extra.empty() ? 0 : kExtraHeadBytes + extra.size()));
  append_number<uint64_t>(bytes, 0);  // comment, disk, attributes
  append_number<uint16_t>(bytes, 0);
  append_number<uint32_t>(bytes, short_form(entry.header_offset));
  bytes += entry.name;
  if (!extra.empty()) {
    append_number<uint16_t>(bytes, kExtraZip64);
    append_number<uint16_t>(bytes, static_cast<uint16_t>(extra.size()));
  }
  return bytes + extra;
}

std::string end_records(uint64_t num_entries, uint64_t directory_offset, uint64_t directory_end) {
  const uint64_t directory_bytes = directory_end - directory_offset;
  std::string bytes(kEnd64Signature);
  append_number<uint64_t>(bytes, kEnd64Bytes - 12);
  append_number<uint16_t>(bytes, kVersion64);
  append_number<uint16_t>(bytes, kVersion64);
  append_number<uint64_t>(bytes, 0);  // disks
  append_number<uint64_t>(bytes, num_entries);
  append_number<uint64_t>(bytes, num_entries);
  append_number<uint64_t>(bytes, directory_bytes);
  append_number<uint64_t>(bytes, directory_offset);
  bytes += kLocatorSignature;
  append_number<uint32_t>(bytes, 0);
  append_number<uint64_t>(bytes, directory_end);
  append_number<uint32_t>(bytes, 1);
  bytes += kEndSignature;
  append_number<uint32_t>(bytes, 0);
  const auto count = static_cast<uint16_t>(std::min<uint64_t>(num_entries, kIn64Short));
  append_number<uint16_t>(bytes, count);
  append_number<uint16_t>(bytes, count);
  append_number<uint32_t>(bytes, short_form(directory_bytes));
  append_number<uint32_t>(bytes, short_form(directory_offset));
  append_number<uint16_t>(bytes, 0);
  return bytes;
}

}  // namespace zip

ZipWriter::ZipWriter(std::string path, uint64_t alignment)
    : file_(std::move(path)), alignment_(alignment) {}

void ZipWriter::begin(std::string name) {
  entries_.push_back({.name = std::move(name), .header_offset = file_.size()});
  file_.append(zip::local_header(entries_.back(), alignment_));
  entries_.back().data_offset = file_.size();
}

void ZipWriter::append(std::span<const std::byte> bytes) {
  file_.append(bytes);
  entries_.back().size_bytes += bytes.size();
  entries_.back().crc = crc32(entries_.back().crc, bytes);
}

void ZipWriter::end() {
  file_.append(zip::descriptor(entries_.back()));
}

void ZipWriter::add(std::string name, std::string_view bytes) {
  begin(std::move(name));
  append(std::as_bytes(std::span(bytes)));
  end();
}

void ZipWriter::finish() {
  const uint64_t directory_offset = file_.size();
  for (const ZipEntry& entry : entries_) {
    file_.append(zip::central_record(entry));
  }
  file_.append(zip::end_records(entries_.size(), directory_offset, file_.size()));
  file_.commit();
}

}  // namespace lockstep::formats

#include "formats/archive/inflate_npz.h"

#include <algorithm>
#include <memory>
#include <new>

#include <libdeflate.h>

#include <lockstep/base/error.h>

#include "formats/archive/crc32.h"
#include "formats/archive/zip_writer.h"
#include "formats/npy.h"
#include "formats/weight_file.h"

namespace lockstep::formats {

namespace {

constexpr uint64_t kMaxRatio = 1032;  // deflate: 258 bytes for two bits
constexpr uint64_t kAlignment = 64;

class StoredArchive : public base::ByteSource {
 public:
  StoredArchive(std::string name, std::string bytes)
      : name_(std::move(name)), bytes_(std::move(bytes)) {}

  const std::string& name() const override { return name_; }
  uint64_t size() const override { return bytes_.size(); }

 private:
  void read_inside(uint64_t offset, std::span<std::byte> bytes) const override {
    const auto from = std::as_bytes(std::span(bytes_)).subspan(offset, bytes.size());
    std::copy(from.begin(), from.end(), bytes.begin());
  }

  std::string name_;
  std::string bytes_;
};

struct FreeInflater {
  void operator()(libdeflate_decompressor* inflater) const {
    libdeflate_free_decompressor(inflater);
  }
};

// Appends what the record holds.
void inflate_record(const ZipReader& zip, const ZipEntry& entry, std::string& bytes) {
  const auto fail = [&](const std::string& what) {
    throw FormatError("{}: record {} (offset {}, {} bytes) {}; copy the file again",
                      zip.source().name(), base::shown(entry.name), entry.data_offset,
                      entry.deflated_bytes, what);
  };
  const std::unique_ptr<libdeflate_decompressor, FreeInflater> inflater(
      libdeflate_alloc_decompressor());
  if (!inflater) {
    throw std::bad_alloc();
  }
  const std::string deflated = zip.source().read_text(entry.data_offset, entry.deflated_bytes);
  const size_t start = bytes.size();
  bytes.resize(start + entry.size_bytes);
  size_t consumed = 0;
  size_t produced = 0;
  const libdeflate_result result = libdeflate_deflate_decompress_ex(
      inflater.get(), deflated.data(), deflated.size(), bytes.data() + start, entry.size_bytes,
      &consumed, &produced);
  if (result == LIBDEFLATE_INSUFFICIENT_SPACE) {
    fail("does not end with its array");
  } else if (result != LIBDEFLATE_SUCCESS) {
    fail("cannot be inflated");
  } else if (produced != entry.size_bytes) {
    fail(
        fmt::format("inflates to {} bytes, and the directory says {}", produced, entry.size_bytes));
  } else if (consumed != entry.deflated_bytes) {
    fail("does not end with its array");
  }
  const auto array = std::as_bytes(std::span(bytes)).subspan(start);
  zip.check_crc(entry, crc32(0, array));
  read_npy(base::MemorySource(array, zip.source().name()),
           {.name = entry.name, .offset_bytes = 0, .size_bytes = entry.size_bytes});
}

void append_record(const ZipReader& zip, const ZipEntry& entry, std::string& bytes) {
  if (entry.is_deflated) {
    inflate_record(zip, entry, bytes);
  } else {
    bytes += zip.read(entry, entry.size_bytes);
  }
}

// That memory is asked for what can be there.
uint64_t checked_total(const ZipReader& zip, const InflateLimits& limits) {
  const std::string& file = zip.source().name();
  uint64_t total = 0;
  for (const ZipEntry& entry : zip.entries()) {
    if (entry.is_deflated && entry.size_bytes / kMaxRatio > entry.deflated_bytes) {
      throw FormatError("{}: record {} (offset {}): {} bytes cannot be deflated to {}", file,
                        base::shown(entry.name), entry.data_offset, entry.size_bytes,
                        entry.deflated_bytes);
    }
    const auto sum = checked_add(total, entry.size_bytes);
    if (!sum || *sum > limits.total_bytes) {
      throw FormatError(
          "{}: its arrays have more than {} bytes, the limit where they are deflated; save the "
          "file without compression (numpy.savez)",
          file, limits.total_bytes);
    }
    total = *sum;
  }
  return total;
}

}  // namespace

std::unique_ptr<base::ByteSource> inflate_npz(std::unique_ptr<base::ByteSource> source,
                                              const InflateLimits& limits) {
  if (detect_weight_format(*source) != WeightFormat::Npz) {
    return source;
  }
  const ZipReader zip(*source, {.may_deflate = true});
  if (std::none_of(zip.entries().begin(), zip.entries().end(),
                   [](const ZipEntry& entry) { return entry.is_deflated; })) {
    return source;
  }
  std::string bytes;
  bytes.reserve(checked_total(zip, limits));
  std::string directory;
  for (const ZipEntry& entry : zip.entries()) {
    const ZipEntry stored{.name = entry.name,
                          .header_offset = bytes.size(),
                          .size_bytes = entry.size_bytes,
                          .crc = entry.crc};
    bytes += zip::local_header(stored, kAlignment);
    append_record(zip, entry, bytes);
    bytes += zip::descriptor(stored);
    directory += zip::central_record(stored);
  }
  const uint64_t directory_offset = bytes.size();
  bytes += directory;
  bytes += zip::end_records(zip.entries().size(), directory_offset, bytes.size());
  return std::make_unique<StoredArchive>(source->name(), std::move(bytes));
}

}  // namespace lockstep::formats

#include "formats/archive/inflate_npz.h"

#include <algorithm>
#include <vector>

#include <zlib.h>

#include <lockstep/base/error.h>

#include "formats/archive/crc32.h"
#include "formats/archive/zip_writer.h"
#include "formats/npy.h"
#include "formats/weight_file.h"

namespace lockstep::formats {

namespace {

constexpr uint64_t kPieceBytes = 1u << 18;
constexpr uint64_t kMaxRatio = 1032;  // deflate: 258 bytes for two bits
constexpr uint64_t kAlignment = 64;
constexpr uint64_t kNpyStartBytes = 4096;  // NumPy's header has 128 as a rule
constexpr int kRawDeflate = -15;           // no header of zlib's own, a window of 32 KiB

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

// The bytes of one record, in order.
class Inflater {
 public:
  Inflater(const base::ByteSource& source, const ZipEntry& entry) : source_(source), entry_(entry) {
    LOCKSTEP_CHECK(inflateInit2(&stream_, kRawDeflate) == Z_OK, "no zlib");
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Appends up to `count` bytes; fewer only where the record ends.
  void append_to(std::string& bytes, uint64_t count) {
    const size_t before = bytes.size();
    bytes.resize(before + count);
    stream_.next_out = reinterpret_cast<Bytef*>(bytes.data() + before);
    stream_.avail_out = static_cast<uInt>(count);
    while (stream_.avail_out != 0 && !is_ended_) {
      step();
    }
    bytes.resize(bytes.size() - stream_.avail_out);
  }

  // Throws unless deflated bytes and array end together.
  void finish() {
    unsigned char surplus = 0;
    stream_.next_out = &surplus;
    stream_.avail_out = 1;
    while (stream_.avail_out != 0 && !is_ended_) {
      step();
    }
    if (stream_.avail_out == 0 || consumed() != entry_.deflated_bytes) {
      fail("does not end with its array");
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError("{}: record {} (offset {}, {} bytes) {}; copy the file again", source_.name(),
                      base::shown(entry_.name), entry_.data_offset, entry_.deflated_bytes, what);
  }

 private:
  uint64_t consumed() const { return read_ - stream_.avail_in; }

  void step() {
    if (stream_.avail_in == 0 && read_ < entry_.deflated_bytes) {
      piece_.resize(std::min(kPieceBytes, entry_.deflated_bytes - read_));
      source_.read_at(entry_.data_offset + read_, piece_);
      read_ += piece_.size();
      stream_.next_in = reinterpret_cast<Bytef*>(piece_.data());
      stream_.avail_in = static_cast<uInt>(piece_.size());
    }
    const int result = inflate(&stream_, Z_NO_FLUSH);
    is_ended_ = result == Z_STREAM_END;
    if (result != Z_OK && !is_ended_) {
      fail(fmt::format("cannot be inflated from its byte {} on", consumed()));
    }
  }

  const base::ByteSource& source_;
  const ZipEntry& entry_;
  z_stream stream_{};
  std::vector<std::byte> piece_;
  uint64_t read_ = 0;
  bool is_ended_ = false;
};

// Appends what the record holds.
void inflate_record(const ZipReader& zip, const ZipEntry& entry, std::string& bytes) {
  const size_t start = bytes.size();
  Inflater inflater(zip.source(), entry);
  const auto fill = [&](uint64_t size) {
    while (bytes.size() - start < size) {
      const size_t before = bytes.size();
      inflater.append_to(bytes, std::min(size - (before - start), kPieceBytes));
      if (bytes.size() == before) {
        inflater.fail(fmt::format("inflates to {} bytes, and the directory says {}", before - start,
                                  entry.size_bytes));
      }
    }
  };
  fill(std::min(entry.size_bytes, kNpyStartBytes));
  const base::MemorySource header(std::as_bytes(std::span(bytes)).subspan(start),
                                  zip.source().name());
  read_npy(header, {.name = entry.name, .offset_bytes = 0, .size_bytes = entry.size_bytes});
  fill(entry.size_bytes);
  inflater.finish();
  zip.check_crc(entry, crc32(0, std::as_bytes(std::span(bytes)).subspan(start)));
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

#include <algorithm>
#include <tuple>

#include <lockstep/base/error.h>

#include "formats/little_endian.h"
#include "formats/safetensors.h"
#include "formats/safetensors_header.h"

namespace lockstep::formats {

namespace {

constexpr uint64_t kLengthBytes = 8;

std::string read_header(const base::ByteSource& source, const SafetensorsLimits& limits) {
  if (source.size() < kLengthBytes) {
    throw FormatError("{}: {} bytes cannot hold the length of a safetensors header, which has {}",
                      source.name(), source.size(), kLengthBytes);
  }
  const auto length = number_at<uint64_t>(source.read_text(0, kLengthBytes), 0);
  if (length > limits.header_bytes) {
    throw FormatError(
        "{}: a header of {} bytes (offset 0) is above the limit of {}; is this a "
        "safetensors file?",
        source.name(), length, limits.header_bytes);
  }
  if (length > source.size() - kLengthBytes) {
    throw FormatError(
        "{}: a header of {} bytes (offset 0) ends beyond the file's {}; it is "
        "truncated",
        source.name(), length, source.size());
  }
  return source.read_text(kLengthBytes, length);
}

// The bytes of the tensors follow each other: no hole in which something hides, no overlap by
// which a small file becomes a large model.
void check_layout(const base::ByteSource& source, const std::vector<SafetensorsEntry>& entries,
                  uint64_t data_offset) {
  uint64_t previous_end = 0;
  for (const SafetensorsEntry& entry : entries) {
    const auto fail = [&](const std::string& what) {
      throw FormatError("{}: tensor {}: data_offsets [{}, {}] {}", source.name(),
                        base::shown(entry.name), entry.begin, entry.end, what);
    };
    if (entry.end < entry.begin) {
      fail("end before they begin");
    }
    if (entry.begin != previous_end) {
      fail(fmt::format("begin at offset {} of the data, where the tensor before ends at {}: {}",
                       entry.begin, previous_end,
                       entry.begin < previous_end ? "an overlap" : "a hole"));
    }
    const auto bytes = checked_bytes(entry.dtype, entry.shape);
    if (!bytes) {
      fail(fmt::format("belong to {}, whose size is no whole number of bytes below 2^63",
                       to_string(entry.dtype, entry.shape)));
    }
    if (*bytes != entry.end - entry.begin) {
      fail(fmt::format("hold {} bytes, and {} has {}", entry.end - entry.begin,
                       to_string(entry.dtype, entry.shape), *bytes));
    }
    if (entry.end > source.size() - data_offset) {
      fail(fmt::format("end at offset {} + {} of a file of {} bytes; it is truncated", data_offset,
                       entry.end, source.size()));
    }
    previous_end = entry.end;
  }
  if (data_offset + previous_end != source.size()) {
    throw FormatError(
        "{}: the last tensor ends at offset {} and the file at {}: bytes that no "
        "tensor owns",
        source.name(), data_offset + previous_end, source.size());
  }
}

}  // namespace

SafetensorsFile read_safetensors(const base::ByteSource& source, const SafetensorsLimits& limits) {
  const std::string json = read_header(source, limits);
  SafetensorsHeader header = parse_safetensors_header(source.name(), json, limits);
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  SafetensorsFile file{.metadata = std::move(header.metadata),
                       .data_offset = kLengthBytes + json.size()};
  check_layout(source, header.entries, file.data_offset);
  file.tensors.reserve(header.entries.size());
  for (SafetensorsEntry& entry : header.entries) {
    file.tensors.push_back({.name = std::move(entry.name),
                            .dtype = entry.dtype,
                            .shape = std::move(entry.shape),
                            .offset_bytes = file.data_offset + entry.begin,
                            .size_bytes = entry.end - entry.begin});
  }
  return file;
}

}  // namespace lockstep::formats

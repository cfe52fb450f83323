#include "formats/archive/crc32.h"
#include "formats/archive/zip_format.h"
#include "formats/archive/zip_writer.h"
#include "formats/hostile.h"
#include "formats/little_endian.h"
#include "formats/support.h"

namespace lockstep::test {

namespace {

using namespace std::string_literals;

// A zip of two records whose parts can be spoilt one by one.
struct Parts {
  std::vector<formats::ZipEntry> entries{{.name = "r/a"}, {.name = "r/b"}};
  std::vector<std::string> data{"first", "second record"};

  std::string zip() {
    std::string bytes;
    std::string directory;
    for (size_t i = 0; i < entries.size(); ++i) {
      formats::ZipEntry& entry = entries[i];
      entry.header_offset = bytes.size();
      entry.size_bytes = data[i].size();
      entry.crc = formats::crc32(0, std::as_bytes(std::span(data[i])));
      bytes += formats::zip::local_header(entry, 64) + data[i] + formats::zip::descriptor(entry);
      directory += formats::zip::central_record(entry);
    }
    directory_offset = bytes.size();
    bytes += directory;
    end_offset = bytes.size();
    return bytes + formats::zip::end_records(entries.size(), directory_offset, end_offset);
  }

  size_t directory_offset = 0;
  size_t end_offset = 0;
};

template <typename Number>
std::string with(std::string bytes, size_t offset, Number number) {
  std::string text;
  formats::append_number<Number>(text, number);
  return bytes.replace(offset, text.size(), text);
}

std::string renamed(const char* first, const char* second) {
  Parts parts;
  parts.entries[0].name = first;
  parts.entries[1].name = second;
  return parts.zip();
}

}  // namespace

std::vector<HostileFile> hostile_zip() {
  Parts parts;
  const std::string good = parts.zip();
  const size_t local = parts.entries[1].header_offset;
  const size_t first = parts.directory_offset;
  const size_t second = first + formats::zip::kCentralBytes + 3;
  const size_t end64 = parts.end_offset;
  const size_t end = good.size() - formats::zip::kEndBytes;
  return {
      {"empty", ""},
      {"byte-behind", good + "x"},
      {"comment", with<uint16_t>(good, end + 20, 1)},
      {"second-disk", with<uint16_t>(good, end + 4, 1)},
      {"other-count", with<uint16_t>(good, end + 10, 3)},
      {"zip64-count", with<uint64_t>(good, end64 + 32, 3)},
      {"zip64-counts", with<uint64_t>(with<uint64_t>(good, end64 + 32, 3), end64 + 24, 3)},
      {"zip64-offset", with<uint64_t>(good, end64 + 48, UINT64_MAX)},
      {"directory-overflow",
       with<uint64_t>(with<uint32_t>(good, end + 16, formats::zip::kIn64), end64 + 48, UINT64_MAX)},
      {"hidden", std::string(good).insert(parts.end_offset, "hidden")},
      {"no-directory-record", with<uint32_t>(good, first, 7)},
      {"long-name", with<uint16_t>(good, second + 28, 60000)},
      {"deflated", with<uint16_t>(good, second + 10, 8)},
      {"encrypted", with<uint16_t>(good, second + 8, 1)},
      {"other-compressed-size", with<uint32_t>(good, second + 20, 7)},
      {"other-header", with<uint32_t>(good, second + 42, 0)},
      {"header-outside", with<uint32_t>(good, second + 42, 0x7fffffff)},
      {"header-in-zip64", with<uint32_t>(good, second + 42, formats::zip::kIn64)},
      {"no-local-header", with<uint32_t>(good, local, 7)},
      {"local-deflated", with<uint16_t>(good, local + 8, 8)},
      {"local-size", with<uint32_t>(good, local + 18, 7)},
      {"long-extra", with<uint16_t>(good, local + 28, 60000)},
      {"long-data", with<uint32_t>(with<uint32_t>(good, second + 20, 60000), second + 24, 60000)},
      {"overlap", with<uint32_t>(with<uint32_t>(good, first + 20, 80), first + 24, 80)},
      {"wrong-crc", with<uint32_t>(good, second + 16, 7)},
      {"flipped-bit", flipped(good, "second")},
      {"duplicate", renamed("r/a", "r/a")},
      {"parent-inside", renamed("r/a", "r/../b")},
      {"parent", renamed("r/a", "..")},
      {"absolute", renamed("r/a", "/b")},
      {"backslash", renamed("r/a", "r\\b")},
      {"empty-name", renamed("", "r/a")},
  };
}

}  // namespace lockstep::test

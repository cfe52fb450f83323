#include "formats/support.h"

#include <fmt/format.h>
#include <libdeflate.h>

#include <lockstep/base/error.h>

#include "base/round.h"
#include "formats/archive/crc32.h"
#include "formats/archive/zip_format.h"
#include "formats/archive/zip_writer.h"
#include "formats/little_endian.h"
#include "support/paths.h"

namespace lockstep::test {

base::MemorySource source_of(std::string_view bytes) {
  return base::MemorySource(std::as_bytes(std::span(bytes)), "x");
}

std::string file_text(const std::string& path) {
  return base::read_file(path, 64u << 20);
}

std::string golden(const std::string& name) {
  return file_text(testing_support::in_tree("tests/formats/goldens/") + name);
}

std::string zip_of(const std::vector<std::pair<std::string, std::string>>& records) {
  std::string bytes;
  std::string directory;
  for (const auto& [name, content] : records) {
    const formats::ZipEntry entry{.name = name,
                                  .header_offset = bytes.size(),
                                  .size_bytes = content.size(),
                                  .crc = formats::crc32(0, std::as_bytes(std::span(content)))};
    bytes += formats::zip::local_header(entry, 64) + content + formats::zip::descriptor(entry);
    directory += formats::zip::central_record(entry);
  }
  const size_t directory_offset = bytes.size();
  bytes += directory;
  return bytes + formats::zip::end_records(records.size(), directory_offset, bytes.size());
}

std::string tar_header(const std::string& name, uint64_t size, char type) {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(124, 11, fmt::format("{:011o}", size));
  header.replace(148, 8, "        ");
  header[156] = type;
  header.replace(257, 8, std::string_view("ustar\00000", 8));
  uint64_t sum = 0;
  for (const char c : header) {
    sum += static_cast<unsigned char>(c);
  }
  header.replace(148, 7, fmt::format("{:06o}", sum) + '\0');
  return header;
}

std::string tar_of(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string bytes;
  for (const auto& [name, content] : members) {
    bytes += tar_header(name, content.size()) + content;
    bytes.resize(base::rounded_up<size_t>(bytes.size(), 512));
  }
  return bytes + std::string(1024, '\0');
}

std::string flipped(std::string bytes, std::string_view place) {
  bytes.at(bytes.find(place)) ^= 1;
  return bytes;
}

std::string deflated(std::string zip) {
  for (size_t at = zip.find("PK\x01\x02"); at != zip.npos; at = zip.find("PK\x01\x02", at + 1)) {
    zip[at + 10] = 8;
  }
  return zip;
}

std::string deflate_of(const std::string& bytes) {
  constexpr int kSmallest = 9;
  libdeflate_compressor* const compressor = libdeflate_alloc_compressor(kSmallest);
  LOCKSTEP_CHECK(compressor != nullptr, "libdeflate");
  std::string packed(libdeflate_deflate_compress_bound(compressor, bytes.size()), '\0');
  packed.resize(libdeflate_deflate_compress(compressor, bytes.data(), bytes.size(), packed.data(),
                                            packed.size()));
  libdeflate_free_compressor(compressor);
  return packed;
}

std::string deflated_npz(const std::string& deflated_bytes, const std::string& content) {
  const formats::ZipEntry entry{.name = "a.npy",
                                .header_offset = 0,
                                .size_bytes = content.size(),
                                .crc = formats::crc32(0, std::as_bytes(std::span(content)))};
  std::string bytes =
      formats::zip::local_header(entry, 64) + deflated_bytes + formats::zip::descriptor(entry);
  bytes[8] = formats::zip::kDeflated;
  std::string directory = formats::zip::central_record(entry);
  directory[10] = formats::zip::kDeflated;
  std::string size;
  formats::append_number<uint32_t>(size, static_cast<uint32_t>(deflated_bytes.size()));
  directory.replace(20, 4, size);
  const size_t directory_offset = bytes.size();
  bytes += directory;
  return bytes + formats::zip::end_records(1, directory_offset, bytes.size());
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

void for_each_cut(std::string_view bytes, const std::function<void(std::string_view)>& check) {
  for (size_t percent = 0; percent < 100; ++percent) {
    check(bytes.substr(0, bytes.size() * percent / 100));
  }
  for (size_t missing = 1; missing <= 10; ++missing) {
    check(bytes.substr(0, bytes.size() - missing));
  }
}

void for_each_flip(std::string bytes, size_t begin, size_t end,
                   const std::function<void(std::string_view, size_t byte)>& check) {
  for (size_t byte = begin; byte < end; ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[byte] = static_cast<char>(bytes[byte] ^ (1 << bit));
      check(bytes, byte);
      bytes[byte] = static_cast<char>(bytes[byte] ^ (1 << bit));
    }
  }
}

}  // namespace lockstep::test

#include <fcntl.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "formats/archive/crc32.h"
#include "formats/archive/zip_format.h"
#include "formats/archive/zip_reader.h"
#include "formats/archive/zip_writer.h"
#include "formats/little_endian.h"
#include "formats/support.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

uint32_t crc_of(std::string_view text) {
  return formats::crc32(0, std::as_bytes(std::span(text)));
}

// A zip of two records whose parts can be spoilt one by one.
struct Parts {
  std::vector<formats::ZipEntry> entries{{.name = "r/a"}, {.name = "r/b"}};
  std::vector<std::string> data{"first", "second record"};
  std::string before_end;  // after the directory

  std::string zip() {
    std::string bytes;
    std::string directory;
    for (size_t i = 0; i < entries.size(); ++i) {
      formats::ZipEntry& entry = entries[i];
      entry.header_offset = bytes.size();
      entry.size_bytes = data[i].size();
      entry.crc = crc_of(data[i]);
      bytes += formats::zip::local_header(entry, 64) + data[i] + formats::zip::descriptor(entry);
      directory += formats::zip::central_record(entry);
    }
    directory_offset = bytes.size();
    bytes += directory + before_end;
    end_offset = bytes.size();
    return bytes + formats::zip::end_records(entries.size(), directory_offset, end_offset);
  }

  size_t directory_offset = 0;
  size_t end_offset = 0;
};

std::string zip_refusal(std::string_view bytes) {
  return test::refusal([&] {
    const base::MemorySource source = test::source_of(bytes);
    const formats::ZipReader reader(source);
    for (const formats::ZipEntry& entry : reader.entries()) {
      reader.verify(entry);
    }
  });
}

template <typename Number>
std::string with(std::string bytes, size_t offset, Number number) {
  std::string text;
  formats::append_number<Number>(text, number);
  return bytes.replace(offset, text.size(), text);
}

TEST(Zip, ReadsRecordsWhereTheyLie) {
  const std::string bytes = Parts().zip();
  const base::MemorySource source = test::source_of(bytes);
  const formats::ZipReader reader(source);
  ASSERT_EQ(reader.entries().size(), 2u);
  const formats::ZipEntry* record = reader.find("r/b");
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(record->data_offset % 64, 0u);
  EXPECT_EQ(reader.read(*record, 100), "second record");
  EXPECT_THAT(test::refusal([&] { reader.read(*record, 12); }),
              HasSubstr("13 bytes, the limit is"));
  EXPECT_EQ(reader.find("r/c"), nullptr);
  EXPECT_TRUE(reader.has_checksums());
}

TEST(Zip, ReadsWhatTorchWrote) {
  const std::string bytes = test::golden("state_dict.pth");
  const base::MemorySource source = test::source_of(bytes);
  const formats::ZipReader reader(source);
  ASSERT_NE(reader.find("state_dict/data.pkl"), nullptr);
  EXPECT_EQ(reader.read(*reader.find("state_dict/version"), 10), "3\n");
  for (const formats::ZipEntry& entry : reader.entries()) {
    EXPECT_EQ(entry.data_offset % 64, 0u);
    reader.verify(entry);
  }
}

TEST(Zip, SaysWhetherThereAreChecksums) {
  const std::string bytes = test::golden("no_crc.pth");
  const base::MemorySource source = test::source_of(bytes);
  const formats::ZipReader reader(source);
  EXPECT_FALSE(reader.has_checksums());
  for (const formats::ZipEntry& entry : reader.entries()) {
    reader.verify(entry);
  }
}

TEST(Zip, ReadsZip64Sizes) {
  Parts parts;
  std::string bytes = parts.zip();
  const formats::ZipEntry large{
      .name = "r/large", .header_offset = 5'000'000'000, .size_bytes = 6'000'000'000};
  std::string record = formats::zip::central_record(large);
  EXPECT_EQ(formats::number_at<uint32_t>(record, 24), formats::zip::kIn64);
  EXPECT_EQ(formats::number_at<uint32_t>(record, 42), formats::zip::kIn64);
  EXPECT_EQ(formats::zip::descriptor(large).size(), 24u);
  EXPECT_EQ(formats::zip::descriptor({}).size(), 16u);
  // A directory in ZIP64 form of records that are small enough for a test.
  std::string directory;
  for (const formats::ZipEntry& entry : parts.entries) {
    record = formats::zip::central_record({.name = entry.name,
                                           .header_offset = 5'000'000'000,
                                           .size_bytes = 6'000'000'000,
                                           .crc = entry.crc});
    const size_t extra = formats::zip::kCentralBytes + entry.name.size() + 4;
    record = with<uint64_t>(record, extra, entry.size_bytes);
    record = with<uint64_t>(record, extra + 8, entry.size_bytes);
    directory += with<uint64_t>(record, extra + 16, entry.header_offset);
  }
  bytes = bytes.substr(0, parts.directory_offset) + directory;
  bytes += formats::zip::end_records(2, parts.directory_offset, bytes.size());
  EXPECT_EQ(zip_refusal(bytes), "");
  const base::MemorySource source = test::source_of(bytes);
  const formats::ZipReader reader(source);
  EXPECT_EQ(reader.read(*reader.find("r/b"), 100), "second record");
}

// Zeros by doubling: CRC-32 without reading them.
uint32_t crc_of_zeros(uint64_t size) {
  const std::byte zero{};
  uint32_t crc = 0;
  uint32_t power = formats::crc32(0, std::span(&zero, 1));
  for (uint64_t bit = 1; bit <= size;
       bit *= 2, power = formats::crc32_combine(power, power, bit / 2)) {
    if ((size & bit) != 0) {
      crc = formats::crc32_combine(crc, power, bit);
    }
  }
  return crc;
}

TEST(Zip, ReadsAFileOfMoreThanFourGigabytes) {
  if (!base::Env().flag("LOCKSTEP_LONG_TESTS").value_or(false)) {
    GTEST_SKIP() << "LOCKSTEP_LONG_TESTS=1 reads 5 GB";
  }
  const test::TempFolder folder;
  const std::string path = folder.file("large.zip", "");
  const base::UniqueFd fd = base::open_file(path, O_WRONLY);
  constexpr uint64_t kLargeBytes = 5'000'000'000;
  formats::ZipEntry large{
      .name = "r/large", .size_bytes = kLargeBytes, .crc = crc_of_zeros(kLargeBytes)};
  formats::ZipEntry last{.name = "r/last", .size_bytes = 4, .crc = crc_of("last")};
  const auto put = [&](uint64_t offset, const std::string& bytes) {
    ASSERT_EQ(::lseek(fd.get(), static_cast<off_t>(offset), SEEK_SET), static_cast<off_t>(offset));
    base::write_all(fd.get(), bytes.data(), bytes.size());
  };
  const std::string header = formats::zip::local_header(large, 64);
  put(0, header);
  last.header_offset = header.size() + kLargeBytes + formats::zip::descriptor(large).size();
  put(header.size() + kLargeBytes, formats::zip::descriptor(large) +
                                       formats::zip::local_header(last, 64) + "last" +
                                       formats::zip::descriptor(last));
  const uint64_t directory_offset = last.header_offset +
                                    formats::zip::local_header(last, 64).size() + 4 +
                                    formats::zip::descriptor(last).size();
  const std::string directory =
      formats::zip::central_record(large) + formats::zip::central_record(last);
  put(directory_offset, directory + formats::zip::end_records(2, directory_offset,
                                                              directory_offset + directory.size()));
  const base::FileSource source(path);
  const formats::ZipReader reader(source);
  EXPECT_EQ(reader.find("r/large")->size_bytes, kLargeBytes);
  EXPECT_EQ(reader.read(*reader.find("r/last"), 10), "last");
  for (const formats::ZipEntry& entry : reader.entries()) {
    reader.verify(entry);
  }
}

TEST(Zip, RefusesTooManyRecords) {
  const std::string bytes = Parts().zip();
  const base::MemorySource source = test::source_of(bytes);
  EXPECT_THAT(test::refusal([&] { formats::ZipReader reader(source, {.num_entries = 1}); }),
              HasSubstr("2 records in a directory"));
  EXPECT_THAT(test::refusal([&] { formats::ZipReader reader(source, {.directory_bytes = 10}); }),
              HasSubstr("the limits are 200000 and 10"));
}

TEST(Zip, RefusesEveryTruncationAndEveryFlippedBitOfTheData) {
  Parts parts;
  const std::string good = parts.zip();
  test::for_each_cut(good, [](std::string_view cut) {
    EXPECT_NE(zip_refusal(cut), "") << cut.size() << " bytes";
  });
  test::for_each_flip(good, 64, 64 + 5, [](std::string_view flipped, size_t byte) {
    EXPECT_THAT(zip_refusal(flipped), HasSubstr("CRC-32")) << "byte " << byte;
  });
  test::for_each_flip(good, 0, good.size(),
                      [&](std::string_view flipped, size_t) { zip_refusal(flipped); });
}

// Checksums are worked out through a buffer: a bit is looked for in and beyond the first one.
TEST(Zip, RefusesAFlippedBitAnywhereInALargeRecord) {
  std::string content(3'000'001, '\0');
  for (size_t i = 0; i < content.size(); ++i) {
    content[i] = static_cast<char>(i * 7 + i / 251);
  }
  std::string bytes = test::zip_of({{"r/small", "small"}, {"r/large", content}});
  const size_t begin = bytes.find(content);
  ASSERT_NE(begin, std::string::npos);
  const auto refuse = [&] {
    const base::MemorySource source = test::source_of(bytes);
    const formats::ZipReader reader(source);
    const formats::ZipEntry& entry = *reader.find("r/large");
    const std::string verified = test::refusal([&] { reader.verify(entry); });
    EXPECT_EQ(verified, test::refusal([&] { reader.read(entry, content.size()); }));
    return verified;
  };
  EXPECT_EQ(refuse(), "");
  for (const size_t place : {size_t{0}, size_t{99'999}, size_t{100'001}, size_t{1 << 20},
                             content.size() / 2, content.size() - 1}) {
    bytes[begin + place] ^= 4;
    EXPECT_THAT(refuse(), HasSubstr("CRC-32")) << "byte " << place;
    bytes[begin + place] ^= 4;
  }
}

TEST(ZipWriter, WritesAlignedRecordsThatAreReadBack) {
  const test::TempFolder folder;
  for (const uint64_t alignment : {64u, 4096u}) {
    formats::ZipWriter writer(folder.at("a.zip"), alignment);
    writer.add("a/data.pkl", "pickle");
    writer.begin("a/data/0");
    const std::string half(5000, 'h');
    writer.append(std::as_bytes(std::span(half)));
    writer.append(std::as_bytes(std::span(half)));
    writer.end();
    writer.add("a/empty", "");
    writer.finish();
    const base::FileSource source(folder.at("a.zip"));
    const formats::ZipReader reader(source);
    ASSERT_EQ(reader.entries().size(), 3u);
    for (const formats::ZipEntry& entry : reader.entries()) {
      EXPECT_EQ(entry.data_offset % alignment, 0u);
      reader.verify(entry);
    }
    EXPECT_EQ(reader.read(*reader.find("a/data/0"), 1 << 20), half + half);
  }
}

}  // namespace
}  // namespace lockstep

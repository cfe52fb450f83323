#include "storage/parallel_read.h"

#include <atomic>
#include <fcntl.h>
#include <filesystem>
#include <sys/mman.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "storage/direct_source.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Every eight bytes differ from all others.
std::string numbered_text(size_t size) {
  std::string text((size + 7) / 8 * 8, '\0');
  for (uint64_t i = 0; i < text.size() / 8; ++i) {
    std::memcpy(text.data() + i * 8, &i, 8);
  }
  text.resize(size);
  return text;
}

std::string read(const base::ByteSource& source, uint64_t offset, size_t size,
                 storage::ReadOptions options) {
  std::string text(size, '?');
  storage::read_parallel(source, offset, std::as_writable_bytes(std::span(text)), options);
  return text;
}

void forget(const std::string& path) {  // the page cache's copy
  const base::UniqueFd fd = base::open_file(path, O_RDONLY);
  ::fsync(fd.get());
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
}

TEST(ReadParallel, EqualsOneRead) {
  const std::string text = numbered_text(100'003);
  const base::MemorySource source(std::as_bytes(std::span(text)));
  for (const storage::ReadOptions options :
       {storage::ReadOptions{1, 1000}, storage::ReadOptions{3, 4096},
        storage::ReadOptions{16, 1 << 20}, storage::ReadOptions{2, 1}}) {
    EXPECT_EQ(read(source, 0, text.size(), options), text);
    EXPECT_EQ(read(source, 77, 5000, options), text.substr(77, 5000));
    EXPECT_EQ(read(source, text.size(), 0, options), "");
  }
  EXPECT_THROW(read(source, 5, text.size(), {}), FormatError);
  EXPECT_THROW(read(source, 0, 1, {.num_threads = 0}), UsageError);
  EXPECT_THROW(read(source, 0, 1, {.chunk_bytes = 0}), UsageError);
}

TEST(ForEachParallel, StopsAfterTheFirstError) {
  std::atomic<int> calls = 0;
  EXPECT_THAT(
      [&] {
        storage::for_each_parallel(1000, 4, [&](size_t) {
          ++calls;
          throw IoError("number {}", 1);
        });
      },
      ThrowsMessage<IoError>(HasSubstr("number 1")));
  EXPECT_LE(calls, 4);
}

TEST(DirectSource, ReadsAnyPartColdAndWarm) {
  const test::TempFolder folder;
  const std::string text = numbered_text((9u << 20) + 4095 + 13);
  const std::string path = folder.file("a", text);
  forget(path);
  const storage::DirectSource source(path);
  const std::pair<uint64_t, size_t> parts[] = {
      {0, text.size()},         {1, text.size() - 1},      {4096, 1u << 20},
      {4095, (1u << 20) + 2},   {8192, (2u << 20) + 4097}, {text.size() - 300'000, 300'000},
      {text.size() - 100, 100}, {text.size() - 4108, 4108}};
  for (const bool is_cold : {true, false}) {
    for (const auto& [offset, size] : parts) {
      if (is_cold) {
        forget(path);
      }
      EXPECT_TRUE(read(source, offset, size, {4, 2u << 20}) == text.substr(offset, size))
          << offset << " " << size << (is_cold ? " cold" : " warm");
    }
  }
}

TEST(DirectSource, ReadsIntoPagesWithoutACopyAndSoEqual) {
  const test::TempFolder folder;
  const std::string text = numbered_text(4u << 20);
  const std::string path = folder.file("a", text);
  forget(path);
  const storage::DirectSource source(path);
  const base::Mapping memory(-1, text.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  storage::read_parallel(source, 0, {memory.data(), memory.size()}, {2, 1u << 20});
  EXPECT_EQ(std::memcmp(memory.data(), text.data(), text.size()), 0);
}

uint64_t bytes_from_storage() {
  const std::string text = base::read_file("/proc/self/io");
  return std::stoull(text.substr(text.find("\nread_bytes:") + 12));
}

// Also when its begin is in the page cache, from where reading ahead would go on.
TEST(DirectSource, ReadsNothingTwice) {
  const test::TempFolder folder;
  const std::string text = numbered_text(64u << 20);
  const std::string path = folder.file("a", text);
  forget(path);
  std::string begin(4096, '?');
  base::FileSource(path).read_at(0, std::as_writable_bytes(std::span(begin)));
  const storage::DirectSource source(path);
  const uint64_t before = bytes_from_storage();
  for (uint64_t at = 0; at < text.size(); at += 4u << 20) {
    EXPECT_TRUE(read(source, at, 100'000, {}) == text.substr(at, 100'000));
    EXPECT_TRUE(read(source, at + 100'000, (4u << 20) - 100'000, {4, 1u << 20}) ==
                text.substr(at + 100'000, (4u << 20) - 100'000));
  }
  if (source.is_direct()) {
    EXPECT_LE(bytes_from_storage() - before, text.size() / 100 * 110);
  }
}

TEST(DirectSource, LeavesACachedFileInTheCache) {
  const test::TempFolder folder;
  const std::string text = numbered_text(4u << 20);
  const std::string path = folder.file("a", text);
  EXPECT_FALSE(storage::DirectSource(path).is_direct());
  EXPECT_FALSE(storage::DirectSource(folder.file("empty", "")).is_direct());
  const uint64_t before = bytes_from_storage();
  EXPECT_TRUE(read(storage::DirectSource(path), 0, text.size(), {}) == text);
  EXPECT_LT(bytes_from_storage() - before, text.size() / 2) << "and a page of the program at most";
}

TEST(DirectSource, SaysThatAFileShrankWhileItWasRead) {
  const test::TempFolder folder;
  const std::string path = folder.file("a", numbered_text(3u << 20));
  forget(path);
  const storage::DirectSource source(path);
  std::filesystem::resize_file(path, (1u << 20) + 5);
  forget(path);
  EXPECT_THAT(
      [&] {
        read(source, 0, 3u << 20, {1, 4u << 20});
      },
      ThrowsMessage<IoError>(
          AllOf(HasSubstr(path), HasSubstr("at offset 1048581"), HasSubstr("had 3145728 bytes"))));
  EXPECT_THROW(storage::DirectSource(folder.at("absent")), IoError);
}

}  // namespace
}  // namespace lockstep

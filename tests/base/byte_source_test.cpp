#include "base/byte_source.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/atomic_file.h"
#include "base/unique_fd.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(FileSource, ReadsAnyPart) {
  const test::TempFolder folder;
  write(folder.at("a"), "0123456789");
  const base::FileSource source(folder.at("a"));
  EXPECT_EQ(source.size(), 10u);
  EXPECT_EQ(source.read_text(3, 4), "3456");
  EXPECT_EQ(source.read_text(10, 0), "");
  EXPECT_THAT([&] { source.read_text(7, 4); },
              ThrowsMessage<FormatError>(HasSubstr("4 bytes at offset 7 are not inside its 10")));
  EXPECT_THROW(source.read_text(UINT64_MAX, 4), FormatError);
  EXPECT_THROW(source.read_text(4, UINT64_MAX), FormatError);
}

TEST(FileSource, SaysThatAFileShrankWhileItWasRead) {
  const test::TempFolder folder;
  write(folder.at("a"), "0123456789");
  const base::FileSource source(folder.at("a"));
  std::filesystem::resize_file(folder.at("a"), 6);
  EXPECT_THAT([&] { source.read_text(2, 8); },
              ThrowsMessage<IoError>(AllOf(HasSubstr(folder.at("a")), HasSubstr("at offset 6"),
                                           HasSubstr("had 10 bytes when it was opened"))));
}

TEST(FileSource, RefusesWhatIsNoFile) {
  const test::TempFolder folder;
  EXPECT_THROW(base::FileSource(folder.at("absent")), IoError);
  EXPECT_THAT([&] { base::FileSource source(folder.at("")); },
              ThrowsMessage<IoError>(HasSubstr("not a regular file")));
}

TEST(AtomicFile, AppearsWholeOrNotAtAll) {
  const test::TempFolder folder;
  write(folder.at("a"), "old");
  {
    base::AtomicFile file(folder.at("a"));
    file.append("new");
    EXPECT_EQ(base::read_file(folder.at("a")), "old");
  }
  EXPECT_EQ(base::read_file(folder.at("a")), "old");
  {
    base::AtomicFile file(folder.at("a"));
    file.append("new");
    file.append("er");
    EXPECT_EQ(file.size(), 5u);
    file.commit();
  }
  EXPECT_EQ(base::read_file(folder.at("a")), "newer");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.at("")), {}), 1);
  EXPECT_THROW(base::AtomicFile(folder.at("absent/a")), IoError);
}

}  // namespace
}  // namespace lockstep

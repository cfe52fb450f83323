#include "launch/log_file.h"

#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

namespace lockstep {
namespace {

TEST(LogFile, AFullDiskIsSaidOnceAndTheFileGivenUp) {
  int num_warnings = 0;
  log::set_sink([&](log::Level, std::string_view line) {
    ++num_warnings;
    EXPECT_NE(line.find("/dev/full"), std::string_view::npos);
    EXPECT_NE(line.find("No space left on device"), std::string_view::npos);
  });
  LogFile file("/dev/full");
  EXPECT_TRUE(file.is_open());
  file.write("hello");
  EXPECT_FALSE(file.is_open());
  file.write("hello");
  log::set_sink({});
  EXPECT_EQ(num_warnings, 1);
}

TEST(LogFile, NoneIsFineAndAnImpossibleOneIsNot) {
  LogFile none;
  none.write("nobody reads this");
  EXPECT_FALSE(none.is_open());
  EXPECT_THROW(LogFile("/no/such/folder/file"), IoError);
}

}  // namespace
}  // namespace lockstep

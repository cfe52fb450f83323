#include "launch/node/error_file.h"

#include <filesystem>
#include <sys/stat.h>

#include <gtest/gtest.h>

#include "base/unique_fd.h"
#include "support/job.h"

namespace lockstep {
namespace {

class ErrorFile : public ::testing::Test {
 protected:
  std::optional<launch::WorkerError> read(const std::string& text) {
    base::write_file_atomically(path_, text);
    return launch::read_error_file(path_);
  }

  test::TempFolder folder_;
  const std::string path_ = folder_.path() + "/error.json";
};

TEST_F(ErrorFile, AsPythonsRecordWritesIt) {
  const auto error = read(R"({"message": {"message": "ValueError: no", "extraInfo":
      {"py_callstack": "Traceback:\n  x", "timestamp": "1700000000"}}})");
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->message, "ValueError: no");
  EXPECT_EQ(error->callstack, "Traceback:\n  x");
  EXPECT_EQ(error->timestamp, 1700000000);
}

TEST_F(ErrorFile, TheShortForm) {
  const auto error = read(R"({"message": "out of memory"})");
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->message, "out of memory");
  EXPECT_EQ(error->timestamp, 0);
  EXPECT_EQ(read(R"({"message": {"message": "m", "extraInfo": {"timestamp": 12}}})")->timestamp,
            12);
}

TEST_F(ErrorFile, GarbageIsNoError) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("7"), std::string("{}"),
        std::string(R"({"message": 7})"), std::string(R"({"message": {"message": []}})"),
        std::string(R"({"message": ""})"), std::string("\xff\xfe\0", 3), std::string(200000, '['),
        std::string(2u << 20, ' ')}) {
    EXPECT_FALSE(read(text).has_value()) << text.substr(0, 40);
  }
  EXPECT_TRUE(read(R"({"message": {"message": "m", "extraInfo": "x"}})").has_value());
}

TEST_F(ErrorFile, WhatIsNoFileIsNotWaitedFor) {
  EXPECT_FALSE(launch::read_error_file(folder_.path() + "/none").has_value());
  EXPECT_FALSE(launch::read_error_file(folder_.path()).has_value());
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_FALSE(launch::read_error_file(path_).has_value());
}

TEST_F(ErrorFile, LongTextsAreCut) {
  const std::string stack = std::string(100000, 'a') + "the end";
  const auto error = read(R"({"message": {"message": ")" + std::string(100000, 'm') +
                          R"(", "extraInfo": {"py_callstack": ")" + stack + R"("}}})");
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->message.size(), launch::kMaxErrorMessage);
  EXPECT_EQ(error->callstack.size(), launch::kMaxCallstack);
  EXPECT_TRUE(error->callstack.ends_with("the end"));
}

TEST(NewErrorFile, IsNewAndDoesNotExist) {
  const std::string path = launch::new_error_file();
  EXPECT_NE(path, launch::new_error_file());
  EXPECT_TRUE(path.starts_with('/'));
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace lockstep

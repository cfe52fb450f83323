#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(Errors, FormatTheirArguments) {
  const UsageError error("sampler: rank {} is not in [0, {})", 5, 4);
  EXPECT_STREQ(error.what(), "sampler: rank 5 is not in [0, 4)");
}

TEST(Errors, APlainTextIsTakenAsItIs) {
  EXPECT_STREQ(IoError(std::string("a {} b")).what(), "a {} b");
}

TEST(Errors, TheTreeLetsCallersCatchByWhatTheyCanDo) {
  EXPECT_THROW(throw PeerLostError("rank {}", 1), CommError);
  EXPECT_THROW(throw TimeoutError("rank {}", 1), CommError);
  EXPECT_THROW(throw DesyncError("rank {}", 1), CommError);
  EXPECT_THROW(throw CommError("x{}", 1), Error);
  EXPECT_THROW(throw FormatError("x{}", 1), Error);
  EXPECT_THROW(throw IoError("x{}", 1), std::runtime_error);
}

TEST(Errors, CheckSaysWhatWhereAndThatItIsOurs) {
  const int offset = 9;
  try {
    LOCKSTEP_CHECK(offset < 5, "offset {}", offset);
    FAIL() << "nothing was thrown";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("offset < 5"));
    EXPECT_THAT(error.what(), HasSubstr("offset 9"));
    EXPECT_THAT(error.what(), HasSubstr("error_test.cpp"));
    EXPECT_THAT(error.what(), HasSubstr("bug in lockstep"));
  }
  EXPECT_NO_THROW(LOCKSTEP_CHECK(offset == 9, "{}", offset));
}

}  // namespace
}  // namespace lockstep

#include "support/service.h"

#include <optional>

#include <gtest/gtest-spi.h>

namespace lockstep::test {
namespace {

// LOCKSTEP_REQUIRE for one test, as it was afterwards.
class Service : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* value = std::getenv("LOCKSTEP_REQUIRE")) {
      old_ = value;
    }
  }
  void TearDown() override {
    old_ ? ::setenv("LOCKSTEP_REQUIRE", old_->c_str(), 1) : ::unsetenv("LOCKSTEP_REQUIRE");
  }
  static void require(const char* list) { ::setenv("LOCKSTEP_REQUIRE", list, 1); }

 private:
  std::optional<std::string> old_;
};

// In functions of their own: an assertion that fails leaves the function.
void needs_ssh_that_is_missing() {
  LOCKSTEP_NEEDS("ssh", std::optional<std::string>("no sshd here"));
}
void needs_ssh_that_is_there() {
  LOCKSTEP_NEEDS("ssh", std::optional<std::string>());
}

TEST_F(Service, AListOfServicesIsKnown) {
  EXPECT_EQ(unknown_service(""), "");
  EXPECT_EQ(unknown_service("ssh"), "");
  EXPECT_EQ(unknown_service("namespaces,slurm,s3"), "");
}

TEST_F(Service, AMisspeltNameIsFound) {
  EXPECT_EQ(unknown_service("ssh,slrum,s3"), "slrum");
  EXPECT_EQ(unknown_service("ssh, s3"), " s3");
  EXPECT_EQ(unknown_service("ssh,,s3"), "(an empty name)");
  EXPECT_EQ(unknown_service(","), "(an empty name)");
}

TEST_F(Service, IsRequiredIfItsWholeNameIsListed) {
  require("slurm,python-torch");
  EXPECT_TRUE(is_required("slurm"));
  EXPECT_TRUE(is_required("python-torch"));
  EXPECT_FALSE(is_required("python-transformers"));
  ::unsetenv("LOCKSTEP_REQUIRE");
  EXPECT_FALSE(is_required("slurm"));
}

TEST_F(Service, AMissingOneThatIsRequiredFails) {
  require("s3,ssh");
  EXPECT_FATAL_FAILURE(needs_ssh_that_is_missing(), "no sshd here");
}

TEST_F(Service, AMisspeltNameFailsAlsoWhereNothingIsMissing) {
  require("shs");
  EXPECT_FATAL_FAILURE(needs_ssh_that_is_there(), "no such service");
}

}  // namespace
}  // namespace lockstep::test

// The secret of a job whose nodes meet over a network.

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "launch/job/rendezvous.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kWeak = "0123456789abcdef";  // 64 bits
constexpr const char* kStrong = "0f1e2d3c4b5a69788796a5b4c3d2e1f0";

// What job_secret() gives, or says.
std::string secret(const std::string& file, std::map<std::string, std::string> variables = {}) {
  const base::Env env([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
  try {
    return launch::job_secret(file, "job", env);
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(JobSecret, OneThatCanBeGuessedIsRefusedWithTheWayOut) {
  const test::TempFolder folder;
  const std::string weak = folder.file("weak", std::string(kWeak) + "\n", 0600);
  const std::string strong = folder.file("strong", std::string(kStrong) + "\n", 0600);
  EXPECT_EQ(secret(strong), kStrong);
  EXPECT_EQ(secret("", {{"LOCKSTEP_JOB_SECRET", kStrong}}), kStrong);
  EXPECT_THAT(secret(weak), AllOf(HasSubstr("the secret " + weak + " can be guessed"),
                                  HasSubstr("16 hexadecimal digits are 64 bits"),
                                  HasSubstr("openssl rand -hex 32 > " + weak)));
  EXPECT_THAT(
      secret("", {{"LOCKSTEP_JOB_SECRET", kWeak}}),
      AllOf(HasSubstr("LOCKSTEP_JOB_SECRET can be guessed"), HasSubstr("openssl rand -hex 32")));
}

TEST(JobSecret, AFileCountsInAJobThatIsStartedWholeToo) {
  const test::TempFolder folder;
  const std::string strong = folder.file("strong", std::string(kStrong) + "\n", 0600);
  const base::Env env([](const std::string&) { return std::nullopt; });
  EXPECT_EQ(launch::plan_rendezvous({.secret_file = strong}, env).secret, kStrong);
  EXPECT_NE(launch::plan_rendezvous({}, env).secret, launch::plan_rendezvous({}, env).secret);
  EXPECT_THROW(launch::plan_rendezvous({.secret_file = folder.at("none")}, env), UsageError);
}

TEST(JobSecret, AKeyOfTheUsersIsJudgedToo) {
  const test::TempFolder folder;
  const std::map<std::string, std::string> place{{"XDG_CONFIG_HOME", folder.path()}};
  const std::string made = secret("", place);
  EXPECT_EQ(made.size(), 64u) << made;
  EXPECT_EQ(secret("", place), made);
  folder.file("lockstep/key", kWeak, 0600);
  EXPECT_THAT(secret("", place), HasSubstr("can be guessed"));
}

}  // namespace
}  // namespace lockstep

// The secret of a job whose nodes meet over a network.

#include <fcntl.h>
#include <filesystem>
#include <map>
#include <sys/stat.h>
#include <unistd.h>

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

TEST(JobSecret, AFileThatOthersCanReadIsRefusedWithTheWayOut) {
  const test::TempFolder folder;
  const std::string path = folder.file("secret", std::string(kStrong) + "\n", 0600);
  const auto refusal = AllOf(HasSubstr("the secret " + path + " must be a file that only you can "),
                             HasSubstr("chmod 600 " + path));
  for (const mode_t mode : {0644, 0640, 0604, 0620, 0602, 0610, 0601, 0666}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    EXPECT_THAT(secret(path), refusal) << std::oct << mode;
  }
  for (const mode_t mode : {0600, 0400, 0700}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    EXPECT_EQ(secret(path), kStrong) << std::oct << mode;
  }
  constexpr uid_t kNobody = 65534;
  if (::chown(path.c_str(), kNobody, static_cast<gid_t>(-1)) == 0) {  // for root alone
    EXPECT_THAT(secret(path), refusal) << "who owns it can read it";
  }
  EXPECT_THAT(secret(folder.path()), HasSubstr("must be a file that only you can read"));
  EXPECT_THAT(secret(folder.at("none")), HasSubstr("cannot read the secret " + folder.at("none") +
                                                   ": No such file or directory"));
}

TEST(JobSecret, TheKeyIsTheUsersAloneWhateverTheUmask) {
  const test::TempFolder folder;
  const std::map<std::string, std::string> place{{"HOME", folder.path()}};
  const mode_t before = ::umask(0);
  const std::string made = secret("", place);
  ::umask(before);
  EXPECT_EQ(made.size(), 64u) << made;
  const std::string path = folder.at(".config/lockstep/key");
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_EQ(info.st_uid, ::geteuid());
  const std::filesystem::directory_iterator files(folder.at(".config/lockstep")), end;
  EXPECT_EQ(std::distance(files, end), 1) << "its draft is gone";
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  EXPECT_THAT(secret("", place), HasSubstr("chmod 600 " + path));
}

TEST(JobSecret, AHomeThatCannotBeWrittenToIsSaidWithTheWayOut) {
  const auto way_out = AllOf(HasSubstr("set LOCKSTEP_JOB_SECRET to the same random text on every "),
                             HasSubstr("or use --secret-file"));
  EXPECT_THAT(secret("", {{"HOME", "/proc"}}),
              AllOf(HasSubstr("cannot make the key /proc/.config/lockstep/key "), way_out));
  EXPECT_THAT(secret(""), AllOf(HasSubstr("there is no HOME"), way_out));
}

}  // namespace
}  // namespace lockstep

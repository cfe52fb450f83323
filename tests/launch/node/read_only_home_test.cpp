// A home that can only be read, as in many containers: what needs no file there works, and what
// does says so.

#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/socket.h"
#include "support/job.h"
#include "support/service.h"
#include "support/small_disk.h"

namespace lockstep::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

// That nobody listens on now.
uint16_t free_port() {
  return base::Listener({"127.0.0.1", 0}).endpoint().port;
}

class ReadOnlyHome : public ::testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS("namespaces", disk_refusal());
    std::filesystem::create_directory(home());
  }

  std::string home() const { return folder_.at("home"); }

  // `lockstep ARGUMENTS`, by somebody who has nothing but this home.
  base::Output run(Words arguments, const Words& more_variables = {}) const {
    Words words{"env",
                "-u",
                "XDG_CONFIG_HOME",
                "-u",
                "XDG_CACHE_HOME",
                "-u",
                "XDG_RUNTIME_DIR",
                "-u",
                "LOCKSTEP_CACHE_DIR",
                "HOME=" + home()};
    words.insert(words.end(), more_variables.begin(), more_variables.end());
    words.push_back(lockstep_program());
    words.insert(words.end(), arguments.begin(), arguments.end());
    return base::run_process({.argv = on_disk({.folder = home(), .can_write = false}, words)},
                             base::Deadline::after(kPatience));
  }

  TempFolder folder_;
};

TEST_F(ReadOnlyHome, AJobOfOneNodeNeedsNoFileThere) {
  const base::Output output = run({"run", "--nproc-per-node=2", "sh", "-c",
                                   "(: > $HOME/mine) 2>/dev/null && exit 3; echo $RANK in $HOME"});
  EXPECT_EQ(output.status.code, 0) << output.err;
  EXPECT_EQ(output.err, "");
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(output.out, HasSubstr(fmt::format("r{0}: {0} in {1}\n", rank, home())));
  }
}

TEST_F(ReadOnlyHome, AJobOfSeveralNodesSaysWhereItsSecretMayBeInstead) {
  // The head is alone, at a port that nobody need reach.
  const Words job{"run",
                  "--nnodes=2",
                  fmt::format("--rdzv-endpoint=127.0.0.1:{}", free_port()),
                  "--rdzv-backend=lockstep",
                  "--rdzv-conf=join_timeout=1",
                  "true"};
  const base::Output refused = run(job);
  EXPECT_EQ(refused.status.code, 2);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("cannot make the key " + home() + "/.config/lockstep/key"),
                    HasSubstr("Read-only file system"), HasSubstr("set LOCKSTEP_JOB_SECRET"),
                    HasSubstr("--secret-file")));
  EXPECT_EQ(lines(refused.err).size(), 1u) << refused.err;
  // With the way out it gets as far as waiting for the other node.
  const base::Output told = run(job, {"LOCKSTEP_JOB_SECRET=0123456789abcdef0123456789abcdef"});
  EXPECT_EQ(told.status.code, 1);
  EXPECT_THAT(told.err, HasSubstr("only 1 of 2 nodes came together within 1 s"));
}

TEST_F(ReadOnlyHome, TheDoctorExaminesTheMachineAllTheSame) {
  const base::Output output = run({"doctor", "--json"});
  EXPECT_EQ(output.status.signal, 0) << output.err;
  EXPECT_THAT(output.out, HasSubstr("{"));
}

}  // namespace
}  // namespace lockstep::test

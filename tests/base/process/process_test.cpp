#include "base/process/process.h"

#include <signal.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

base::Output run(std::vector<std::string> argv) {
  return base::run_process({.argv = std::move(argv)}, base::Deadline::after(20s));
}

TEST(Process, OutputAndExitCodeComeBack) {
  const base::Output output = run({"sh", "-c", "echo out; echo err >&2; exit 7"});
  EXPECT_EQ(output.out, "out\n");
  EXPECT_EQ(output.err, "err\n");
  EXPECT_EQ(output.status.code, 7);
  EXPECT_EQ(output.status.shell_code(), 7);
  EXPECT_EQ(output.status.text(), "exit code 7");
}

TEST(Process, ASignalIsToldApartFromACode) {
  const base::Output output = run({"sh", "-c", "kill -9 $$"});
  EXPECT_EQ(output.status.signal, SIGKILL);
  EXPECT_EQ(output.status.shell_code(), 137);
  EXPECT_EQ(output.status.text(), "killed by signal 9 (SIGKILL)");
}

TEST(Process, AProgramThatIsNotThereIsAnErrorAtOnce) {
  try {
    run({"/no/such/program"});
    FAIL();
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/no/such/program"));
    EXPECT_THAT(error.what(), HasSubstr("No such file"));
  }
  EXPECT_THROW(run({"no-such-program-in-path"}), IoError);
  EXPECT_THROW(run({"/etc/passwd"}), IoError) << "not executable";
  EXPECT_THROW(run({}), UsageError);
}

TEST(Process, TheEnvironmentIsAddedTo) {
  base::ProcessOptions options{.argv = {"sh", "-c", "echo $A-$B-$PATH"},
                               .env = {{"A", "1"}, {"B", "x y"}}};
  const base::Output output = base::run_process(options, base::Deadline::after(20s));
  EXPECT_THAT(output.out, HasSubstr("1-x y-/"));
}

TEST(Process, StandardInputIsEmptyByDefault) {
  EXPECT_EQ(run({"cat"}).status.code, 0);
}

TEST(Process, OneThatOverstaysIsKilled) {
  const base::Output output =
      base::run_process({.argv = {"sleep", "100"}}, base::Deadline::after(50ms));
  EXPECT_TRUE(output.timed_out);
  EXPECT_EQ(output.status.signal, SIGKILL);
}

TEST(Process, WaitHasADeadlineAndPollDoesNotBlock) {
  base::Process process({.argv = {"sleep", "100"}});
  EXPECT_FALSE(process.poll().has_value());
  EXPECT_FALSE(process.wait(base::Deadline::after(20ms)).has_value());
  process.kill(SIGTERM);
  EXPECT_EQ(process.wait(base::Deadline::after(20s))->signal, SIGTERM);
  EXPECT_EQ(process.wait(base::Deadline::never())->signal, SIGTERM) << "asking again is allowed";
}

TEST(Process, TheDestructorLeavesNobody) {
  pid_t pid = 0;
  {
    const base::Process process({.argv = {"sleep", "100"}});
    pid = process.pid();
    EXPECT_EQ(::kill(pid, 0), 0);
  }
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST(Process, LargeOutputOnBothStreamsDoesNotBlock) {
  const base::Output output =
      run({"sh", "-c", "head -c 1000000 /dev/zero >&2; head -c 1000000 /dev/zero"});
  EXPECT_EQ(output.out.size(), 1000000u);
  EXPECT_EQ(output.err.size(), 1000000u);
}

TEST(HostPid, IsBelievedOnlyByTheProcessItWasMeantFor) {
  EXPECT_EQ(base::host_pid(), ::getpid());
  ::setenv("LOCKSTEP_HOST_PID", (std::to_string(::getpid()) + ":123456").c_str(), 1);
  EXPECT_EQ(base::host_pid(), 123456);
  ::setenv("LOCKSTEP_HOST_PID", "1:123456", 1);
  EXPECT_EQ(base::host_pid(), ::getpid());
  ::setenv("LOCKSTEP_HOST_PID", (std::to_string(::getpid()) + ":x").c_str(), 1);
  EXPECT_EQ(base::host_pid(), ::getpid());
  ::unsetenv("LOCKSTEP_HOST_PID");
}

TEST(OwnProgram, IsThisTest) {
  EXPECT_TRUE(base::own_program().ends_with("/base_test")) << base::own_program();
}

TEST(Process, SignalNamesAreThoseOfTheManual) {
  EXPECT_EQ(base::signal_name(SIGTERM), "SIGTERM");
  EXPECT_EQ(base::signal_name(64), "signal 64");
}

}  // namespace
}  // namespace lockstep

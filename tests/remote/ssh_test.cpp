// lockstep on other hosts, over real ssh between emulated machines. What is started there is a
// script in these tests: RemoteNodes does not know what lockstep does with its job.

#include <csignal>
#include <poll.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "remote/remote_nodes.h"
#include "remote/ssh_fixture.h"
#include "support/job.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kReady =
    "#!/bin/sh\n"
    "printf '\\001lockstep is ready\\n'\n"
    "printf '\\001lockstep is ready\\n' >&2\n"
    "read -r job\n";

class Ssh : public SshTest {
 protected:
  // Node 0 reaches the others; `body` is what lockstep does there once it has read its job.
  remote::RemoteNodesOptions options(const std::string& body) {
    static int number = 0;
    return {.program = folder_->file(fmt::format("lockstep-{}", ++number), kReady + body, 0755),
            .ssh = {.program = servers_->client_in(0), .connect_timeout = std::chrono::seconds(2)}};
  }

  struct Result {
    std::vector<remote::RemoteEnd> ends;
    std::string out;
    std::string err;
  };

  // Until all have ended. `step` is called after every turn of the loop.
  static Result run_to_end(
      remote::RemoteNodes& remote, const std::function<void()>& step = [] {}) {
    Result result;
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const base::Deadline deadline = base::Deadline::after(kPatience);
    while (!remote.is_quiet() && !deadline.expired()) {
      std::vector<pollfd> polls;
      remote.add_polls(polls);
      ::poll(polls.data(), polls.size(), deadline.earlier(remote.deadline()).poll_ms());
      for (remote::RemoteEnd& end : remote.handle(polls)) {
        result.ends.push_back(std::move(end));
      }
      step();
    }
    result.out = ::testing::internal::GetCapturedStdout();
    result.err = ::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(remote.is_quiet()) << result.out << result.err;
    return result;
  }
};

TEST_F(Ssh, ArgumentsArriveUnchanged) {
  const std::vector<std::string> words{"a b",    "it's", "\"$HOME\"", "`x`", "two\nlines", "",
                                       "랭크 é", "*",    "\\",        "!",   "#",          "-n"};
  std::vector<std::string> command{"printf", "%s\\0"};
  command.insert(command.end(), words.begin(), words.end());
  std::string expected;
  for (const std::string& word : words) {
    expected += word + '\0';
  }
  const base::Output output =
      base::run_process({.argv = remote::ssh_command({.name = "node1"},
                                                     {.program = servers_->client_in(0)}, command)},
                        base::Deadline::after(kPatience));
  EXPECT_EQ(output.out, expected) << output.err;
}

TEST_F(Ssh, TheJobArrivesOnInputAndOutputComesBackInWholeLines) {
  remote::RemoteNodes remote(options(
      "host=$(uname -n)\n"
      "echo \"$host got ${#job} bytes ending in ${job##*,}\"\n"
      "i=0; while [ $i -lt 300 ]; do echo \"$host line $i of standard output\"; i=$((i+1)); done\n"
      "echo \"$host says so\" >&2\n"));
  const std::string job = std::string(200000, 'x') + ",end}";  // more than a pipe holds
  for (const char* host : {"node1", "node2"}) {
    remote.start({.name = host}, job);
  }
  const Result result = run_to_end(remote);
  EXPECT_EQ(result.ends.size(), 2u);
  for (const remote::RemoteEnd& end : result.ends) {
    EXPECT_TRUE(end.was_ready && end.status.ok()) << end.text;
    EXPECT_THAT(result.out, HasSubstr(end.host.name + " got 200005 bytes ending in end}\n"));
    EXPECT_THAT(result.err, HasSubstr(end.host.name + " says so\n"));
  }
  EXPECT_EQ(lines(result.out).size(), 602u);
  for (const std::string& line : lines(result.out)) {
    EXPECT_EQ(count(line, "node"), 1) << line;
  }
  EXPECT_EQ(count(result.out + result.err, "ready"), 0);
}

TEST_F(Ssh, ExitCodesComeBack) {
  remote::RemoteNodes remote(options("exit 7\n"));
  remote.start({.name = "node1", .user = "root"}, "{}");
  const Result result = run_to_end(remote);
  ASSERT_EQ(result.ends.size(), 1u);
  EXPECT_EQ(result.ends[0].status.code, 7);
  EXPECT_EQ(result.ends[0].text, "lockstep on root@node1 ended: exit code 7");
}

TEST_F(Ssh, EndOfInputEndsTheNode) {
  remote::RemoteNodes remote(options("echo working; cat >/dev/null; echo ended\n"));
  remote.start({.name = "node1"}, "{}");
  bool closed = false;
  const Result result = run_to_end(remote, [&] {
    if (!closed) {
      closed = true;
      remote.close_inputs();
    }
  });
  EXPECT_THAT(result.out, HasSubstr("working\nended\n"));
}

TEST_F(Ssh, NobodyIsLeftWhenTheStarterIsKilled) {
  const std::string mark = folder_->path() + "/started";
  {
    remote::RemoteNodes remote(options(fmt::format("touch {}; cat >/dev/null\n", mark)));
    remote.start({.name = "node1"}, "{}");
    ASSERT_TRUE(wait_until([&] { return ::access(mark.c_str(), F_OK) == 0; }));
  }  // ssh is killed, as it is when the starter dies
  EXPECT_TRUE(wait_until([&] { return nodes_->processes(1).size() == 1; }));  // the ssh server
}

TEST_F(Ssh, NoiseBeforeLockstepIsKeptBack) {
  remote::RemoteNodesOptions noisy = options("echo told\n");
  const std::string real = noisy.program;
  noisy.program =
      folder_->file("noisy",
                    "#!/bin/sh\necho Welcome; echo banner >&2; printf 'no end of line'\n"
                    "exec " +
                        real + "\n",
                    0755);
  remote::RemoteNodes remote(noisy);
  remote.start({.name = "node1"}, "{}");
  const Result result = run_to_end(remote);
  EXPECT_EQ(result.out, "told\n");
  EXPECT_EQ(result.err, "");
}

TEST_F(Ssh, UnreachableHostIsNamedWithSshsReason) {
  remote::RemoteNodes remote(options(""));
  remote.start({.name = "10.88.0.77"}, "{}");
  remote.start({.name = "no-such-host"}, "{}");
  for (const remote::RemoteEnd& end : run_to_end(remote).ends) {
    EXPECT_FALSE(end.was_ready);
    EXPECT_THAT(end.text, HasSubstr("cannot reach " + end.host.name + " by ssh: ssh: "));
    EXPECT_EQ(end.fix, "`ssh " + end.host.name + " true` must work without a password");
  }
}

TEST_F(Ssh, RefusedKeyIsSaid) {
  remote::RemoteNodesOptions wrong = options("");
  wrong.ssh.program = nodes_->inside(0, {.argv = servers_->client_with_wrong_key()}).argv;
  remote::RemoteNodes remote(wrong);
  remote.start({.name = "node1"}, "{}");
  const Result result = run_to_end(remote);
  ASSERT_EQ(result.ends.size(), 1u);
  EXPECT_THAT(result.ends[0].text, HasSubstr("Permission denied (publickey)"));
}

TEST_F(Ssh, MissingLockstepIsSaid) {
  remote::RemoteNodesOptions missing = options("");
  missing.program = folder_->path() + "/none";
  remote::RemoteNodes remote(missing);
  remote.start({.name = "node1"}, "{}");
  const Result result = run_to_end(remote);
  ASSERT_EQ(result.ends.size(), 1u);
  EXPECT_EQ(result.ends[0].sentence(), "there is no lockstep on node1; it must be at " +
                                           missing.program + ", as it is here, or in PATH there");
}

TEST_F(Ssh, LockstepThatDoesNotStartIsSaid) {
  remote::RemoteNodesOptions broken = options("");
  broken.program =
      folder_->file("broken", "#!/bin/sh\necho libfmt.so.9: cannot open >&2; exit 1\n", 0755);
  broken.start_timeout = std::chrono::seconds(20);
  remote::RemoteNodes remote(broken);
  remote.start({.name = "node1"}, "{}");
  EXPECT_EQ(run_to_end(remote).ends.at(0).text,
            "lockstep on node1 ended at once: libfmt.so.9: cannot open");
  broken.program = folder_->file("silent", "#!/bin/sh\nexec cat\n", 0755);
  broken.start_timeout = std::chrono::milliseconds(500);
  remote::RemoteNodes silent(broken);
  silent.start({.name = "node1"}, "{}");
  EXPECT_THAT(run_to_end(silent).ends.at(0).text,
              HasSubstr("node1 did not start lockstep within 500 ms"));
}

TEST_F(Ssh, ThisHostNeedsNone) {
  remote::RemoteNodesOptions local = options("echo here\n");
  local.ssh.program = {"/no/such/ssh"};
  remote::RemoteNodes remote(local);
  remote.start({.name = "localhost"}, "{}");
  remote.start({.name = "127.0.0.1"}, "{}");
  EXPECT_EQ(run_to_end(remote).out, "here\nhere\n");
  EXPECT_THROW(remote.start({.name = "node1"}, "{}"), IoError);
}

}  // namespace
}  // namespace lockstep::test

// The emulated machines themselves: reachable by name, cut off without a reset, gone without a
// trace.

#include "support/nodes.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/process/fork.h"
#include "support/service.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr auto kPatience = std::chrono::seconds(30);

// Sends back what it is sent.
constexpr const char* kServer = R"(
import socket
server = socket.create_server(("node0", 0))
print(server.getsockname()[1], flush=True)
peer = server.accept()[0]
while data := peer.recv(100):
    peer.sendall(data)
)";

// Sends every line that it reads and says what came back within a moment.
constexpr const char* kClient = R"(
import socket, sys
peer = socket.create_connection(("node0", int(sys.argv[1])), 20)
for line in sys.stdin:
    peer.sendall(line.encode())
    peer.settimeout(0.5 if line == "lost\n" else 20)
    try:
        text = b""
        while not text.endswith(line.encode()):
            text += peer.recv(100)
        print(text.decode().split(), flush=True)
    except TimeoutError:
        print("nothing", flush=True)
)";

std::string read_line(const base::UniqueFd& fd) {
  std::string text;
  char letter = 0;
  while (::read(fd.get(), &letter, 1) == 1 && letter != '\n') {
    text += letter;
  }
  return text;
}

std::string host_view() {
  const base::Output links =
      base::run_process({.argv = {"ip", "-brief", "link"}}, base::Deadline::after(kPatience));
  return links.out + base::read_file("/proc/self/mountinfo");
}

// A zombie that its parent has yet to notice does not run any more: it has no program.
bool is_gone(pid_t pid) {
  const std::string program = fmt::format("/proc/{}/exe", pid);
  const base::Deadline deadline = base::Deadline::after(kPatience);
  char target[1];
  while (::readlink(program.c_str(), target, sizeof target) > 0) {
    if (deadline.expired()) {
      return false;
    }
    ::usleep(1000);
  }
  return true;
}

class Nodes : public ::testing::Test {
 protected:
  void SetUp() override { LOCKSTEP_NEEDS("namespaces", nodes_refusal()); }
};

TEST_F(Nodes, HaveNamesAndAddressesOfTheirOwn) {
  TestNodes nodes(3);
  for (int node = 0; node < nodes.size(); ++node) {
    const std::string script =
        "hostname; getent ahostsv4 node2 | head -n 1; ip -brief -4 address show eth0; pwd";
    const base::Output output = base::run_process(
        nodes.inside(node, {.argv = {"sh", "-c", script}}), base::Deadline::after(kPatience));
    EXPECT_THAT(output.out, HasSubstr(nodes.host_name(node) + "\n"));
    EXPECT_THAT(output.out, HasSubstr("10.88.0.3"));
    EXPECT_THAT(output.out, HasSubstr(nodes.address(node) + "/24"));
    EXPECT_THAT(output.out, HasSubstr(::get_current_dir_name()));
  }
  nodes.write_hosts(0, "127.0.1.1 node0\n");
  const base::Output output = base::run_process(
      nodes.inside(0, {.argv = {"getent", "hosts", "node0"}}), base::Deadline::after(kPatience));
  EXPECT_THAT(output.out, HasSubstr("127.0.1.1"));
}

TEST_F(Nodes, LosePacketsWhileTheLinkIsCut) {
  TestNodes nodes(2);
  base::FdPair served = base::make_pipe();
  base::FdPair asked = base::make_pipe();
  base::FdPair heard = base::make_pipe();
  const base::Process server(nodes.inside(
      0, {.argv = {"python3", "-c", kServer}, .env = {}, .stdout_fd = served.write.get()}));
  const std::string port = read_line(served.read);
  const base::Process client(nodes.inside(1, {.argv = {"python3", "-c", kClient, port},
                                              .env = {},
                                              .stdin_fd = asked.read.get(),
                                              .stdout_fd = heard.write.get()}));
  EXPECT_THAT(nodes.processes(0), ::testing::ElementsAre(server.pid()));
  base::write_all(asked.write.get(), "hello\n", 6);
  EXPECT_EQ(read_line(heard.read), "['hello']");
  nodes.cut_link(1);
  base::write_all(asked.write.get(), "lost\n", 5);
  EXPECT_EQ(read_line(heard.read), "nothing");
  nodes.mend_link(1);
  base::write_all(asked.write.get(), "again\n", 6);
  EXPECT_EQ(read_line(heard.read), "['lost', 'again']");  // late, by TCP's own repetition
}

TEST_F(Nodes, LeaveNothingBehind) {
  const std::string before = host_view();
  std::vector<pid_t> left;
  {
    TestNodes nodes(2);
    const std::string script = "setsid sleep 1000 >/dev/null 2>&1 & setsid sleep 1000 >&- 2>&- &";
    base::run_process(nodes.inside(1, {.argv = {"sh", "-c", script}}),
                      base::Deadline::after(kPatience));
    left = nodes.processes(1);
    EXPECT_THAT(left, SizeIs(2));
    EXPECT_THAT(nodes.processes(0), SizeIs(0));
  }
  for (const pid_t pid : left) {
    EXPECT_TRUE(is_gone(pid)) << pid;
  }
  EXPECT_EQ(host_view(), before);
}

TEST_F(Nodes, GoWithAKilledTest) {
  base::FdPair pipe = base::make_pipe();
  const pid_t test = base::fork_child([&] {
    TestNodes nodes(1);
    const std::string script = "setsid sh -c 'echo $$; exec sleep 1000' & wait";
    const base::Process process(
        nodes.inside(0, {.argv = {"sh", "-c", script}, .env = {}, .stdout_fd = pipe.write.get()}));
    ::pause();
    return 0;
  });
  const auto daemon = base::parse_integer(read_line(pipe.read), 1, INT32_MAX);
  ASSERT_TRUE(daemon);
  ::kill(test, SIGKILL);
  ASSERT_EQ(::waitpid(test, nullptr, 0), test);
  EXPECT_TRUE(is_gone(static_cast<pid_t>(*daemon)));
}

}  // namespace
}  // namespace lockstep::test

#include "support/nodes.h"

#include <cerrno>
#include <chrono>
#include <dirent.h>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/process/fork.h"

namespace lockstep::test {

namespace {

constexpr auto kToolTime = std::chrono::seconds(20);
constexpr int kMaxNodes = 99;
constexpr const char* kHosts = "/run/hosts";  // in the node; bound over its /etc/hosts

void run_tool(std::vector<std::string> argv) {
  base::Output output = base::run_process({.argv = argv}, base::Deadline::after(kToolTime));
  if (!output.status.ok()) {
    while (output.err.ends_with('\n')) {
      output.err.pop_back();
    }
    throw IoError("nodes: `{}` failed ({}): {}", fmt::join(argv, " "), output.status.text(),
                  output.err);
  }
}

// Runs `ip` with arguments that have no spaces inside, in the network of `holder`.
void run_ip(pid_t holder, const std::string& arguments) {
  run_tool({"nsenter", fmt::format("--net=/proc/{}/ns/net", holder), "sh", "-c",
            "exec ip " + arguments});
}

// Processes whose network is that of `member`, which is not counted. A zombie has none any more.
std::vector<pid_t> others_in_network(pid_t member) {
  struct stat mine {};
  if (::stat(fmt::format("/proc/{}/ns/net", member).c_str(), &mine) != 0) {
    return {};
  }
  std::vector<pid_t> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  while (const dirent* item = ::readdir(folder.get())) {
    const auto pid = base::parse_integer(item->d_name, 1, INT32_MAX);
    struct stat its {};
    if (pid && *pid != member && ::stat(fmt::format("/proc/{}/ns/net", *pid).c_str(), &its) == 0 &&
        its.st_ino == mine.st_ino && its.st_dev == mine.st_dev) {
      found.push_back(static_cast<pid_t>(*pid));
    }
  }
  return found;
}

void check(int result, const char* what) {
  if (result != 0) {
    throw IoError("nodes: {}: {}", what, base::errno_text(errno));
  }
}

void make_own_machine(const std::string& host_name) {
  check(::unshare(CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS), "unshare a machine's namespaces");
  check(::sethostname(host_name.data(), host_name.size()), "sethostname");
  check(::mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr), "make / a slave mount");
  check(::mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755"), "mount /run");
  check(::mkdir("/run/sshd", 0755), "mkdir /run/sshd");
  base::open_file(kHosts, O_WRONLY | O_CREAT);
  check(::mount(kHosts, "/etc/hosts", nullptr, MS_BIND, nullptr), "bind /etc/hosts");
}

// What a holder does: nothing, until the test lets go of it; then it ends the node's other
// processes, wherever in the tree of processes they are by now, and itself.
void hold_until_closed(int life) {
  char byte = 0;
  while (::read(life, &byte, 1) < 0 && errno == EINTR) {
  }
  for (auto left = others_in_network(::getpid()); !left.empty();
       left = others_in_network(::getpid())) {
    for (const pid_t pid : left) {
      ::kill(pid, SIGKILL);
    }
    ::poll(nullptr, 0, 1);
  }
}

}  // namespace

TestNodes::Holder TestNodes::start_holder(const std::string& host_name) {
  base::FdPair life = base::make_pipe();
  base::FdPair ready = base::make_pipe();
  const pid_t pid = base::fork_child([&] {
    // Neither a Ctrl-C nor the end of the test's terminal may end it before its node's processes.
    ::setsid();
    base::close_all_except({life.read.get(), ready.write.get()});
    try {
      if (host_name.empty()) {
        check(::unshare(CLONE_NEWNET), "unshare the switch's network");
      } else {
        make_own_machine(host_name);
      }
    } catch (const IoError& error) {
      const std::string text = error.what();
      base::write_all(ready.write.get(), text.data(), text.size());
      return 1;
    }
    ready.write.reset();
    hold_until_closed(life.read.get());
    return 0;
  });
  Holder holder{.pid = pid, .life = std::move(life.write)};
  ready.write.reset();
  std::string problem(256, '\0');
  ssize_t size = 0;
  while ((size = ::read(ready.read.get(), problem.data(), problem.size())) < 0 && errno == EINTR) {
  }
  if (size > 0) {
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    throw IoError("{}", problem.substr(0, static_cast<size_t>(size)));
  }
  return holder;
}

TestNodes::TestNodes(int num_nodes) {
  LOCKSTEP_CHECK(num_nodes >= 1 && num_nodes <= kMaxNodes, "{} nodes", num_nodes);
  try {
    switch_ = start_holder("");
    run_ip(switch_.pid, "link add br0 type bridge");
    run_ip(switch_.pid, "link set br0 up");
    for (int node = 0; node < num_nodes; ++node) {
      add_node();
    }
    std::string hosts = "127.0.0.1 localhost\n";
    for (int node = 0; node < num_nodes; ++node) {
      hosts += fmt::format("{} {}\n", address(node), host_name(node));
    }
    for (int node = 0; node < num_nodes; ++node) {
      write_hosts(node, hosts);
    }
  } catch (...) {
    remove();
    throw;
  }
}

TestNodes::~TestNodes() {
  remove();
}

void TestNodes::add_node() {
  const int node = size();
  nodes_.push_back(start_holder(host_name(node)));
  const pid_t pid = nodes_.back().pid;
  run_ip(switch_.pid,
         fmt::format("link add {} type veth peer name eth0 netns {}", host_name(node), pid));
  run_ip(switch_.pid, fmt::format("link set {} master br0 up", host_name(node)));
  run_ip(pid, "link set lo up");
  run_ip(pid, fmt::format("address add {}/24 dev eth0", address(node)));
  run_ip(pid, "link set eth0 up");
}

std::string TestNodes::address(int node) const {
  return fmt::format("10.88.0.{}", node + 1);
}

std::string TestNodes::host_name(int node) const {
  return fmt::format("node{}", node);
}

base::ProcessOptions TestNodes::inside(int node, base::ProcessOptions options) const {
  const std::string names = fmt::format("/proc/{}/ns", nodes_.at(static_cast<size_t>(node)).pid);
  const std::vector<std::string> enter{
      "nsenter",
      fmt::format("--net={}/net", names),
      fmt::format("--uts={}/uts", names),
      fmt::format("--mount={}/mnt", names),
      fmt::format("--wdns={}", std::filesystem::current_path().string()),
      "--"};
  options.argv.insert(options.argv.begin(), enter.begin(), enter.end());
  return options;
}

void TestNodes::cut_link(int node) {
  run_ip(switch_.pid, fmt::format("link set {} down", host_name(node)));
}

void TestNodes::mend_link(int node) {
  run_ip(switch_.pid, fmt::format("link set {} up", host_name(node)));
}

std::vector<pid_t> TestNodes::processes(int node) const {
  return others_in_network(nodes_.at(static_cast<size_t>(node)).pid);
}

void TestNodes::write_hosts(int node, const std::string& text) {
  // In place: a new file of that name would not be the one that is bound over /etc/hosts.
  const pid_t holder = nodes_.at(static_cast<size_t>(node)).pid;
  const base::UniqueFd file =
      base::open_file(fmt::format("/proc/{}/root{}", holder, kHosts), O_WRONLY | O_TRUNC);
  base::write_all(file.get(), text.data(), text.size());
}

void TestNodes::remove() noexcept {
  nodes_.push_back(std::move(switch_));
  for (Holder& holder : nodes_) {
    holder.life.reset();
  }
  for (const Holder& holder : nodes_) {
    while (holder.pid > 0 && ::waitpid(holder.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  nodes_.clear();
}

std::optional<std::string> nodes_refusal() {
  static const auto refusal = []() -> std::optional<std::string> {
    try {
      TestNodes trial(1);
      return std::nullopt;
    } catch (const Error& error) {
      return error.what();
    }
  }();
  return refusal;
}

}  // namespace lockstep::test

#include "bench/bench_network.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/process/fork.h"
#include "base/process/process.h"
#include "base/unique_fd.h"

namespace lockstep::app {

namespace {

constexpr auto kToolTime = std::chrono::seconds(10);
constexpr int64_t kMaxRate = 1000000;  // of any unit
// The burst has room for two of the kernel's largest segments and some; the queue is 50 ms long, as
// that of a small switch.
constexpr const char* kBurst = "256kb";
constexpr const char* kLatency = "50ms";

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  size_t begin = 0;
  while (begin < line.size()) {
    const size_t end = std::min(line.find(' ', begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// Runs `ip` or `tc` with arguments that have no spaces inside.
void run_tool(const std::string& line) {
  const std::vector<std::string> argv = words_of(line);
  base::Output output;
  try {
    output = base::run_process({.argv = argv}, base::Deadline::after(kToolTime));
  } catch (const IoError& error) {
    throw UsageError("--rate needs ip and tc: {}; install iproute2", error.what());
  }
  if (!output.status.ok()) {
    while (output.err.ends_with('\n')) {
      output.err.pop_back();
    }
    throw IoError("--rate: `{}` failed ({}): {}", line, output.status.text(), output.err);
  }
}

void leave_network() {
  if (::unshare(CLONE_NEWNET) != 0) {
    const std::string reason = base::errno_text(errno);
    throw UsageError("--rate makes network namespaces, which this user may not ({}); run as root",
                     reason);
  }
}

// Starts a process that does nothing in a network namespace of its own.
pid_t start_holder() {
  base::FdPair ready = base::make_pipe();
  const pid_t parent = ::getpid();
  const pid_t pid = base::fork_child([&] {
    base::die_with_parent(parent);
    leave_network();
    base::write_all(ready.write.get(), "r", 1);
    base::close_all_except({});
    for (;;) {
      ::pause();
    }
    return 0;
  });
  ready.write.reset();
  char byte = 0;
  ssize_t size = 0;
  while ((size = ::read(ready.read.get(), &byte, 1)) < 0 && errno == EINTR) {
  }
  if (size != 1) {
    throw IoError("--rate: the process that keeps a node's network ended at once");
  }
  return pid;
}

}  // namespace

void check_rate(const std::string& rate) {
  for (const char* unit : {"kbit", "mbit", "gbit"}) {
    if (rate.ends_with(unit) && base::parse_integer(rate.substr(0, rate.size() - 4), 1, kMaxRate)) {
      return;
    }
  }
  throw UsageError("--rate {} is not a rate; write a whole number and kbit, mbit or gbit: 1gbit",
                   rate);
}

BenchNetwork::BenchNetwork(int num_nodes, const std::string& rate) {
  if (::geteuid() != 0) {
    throw UsageError("--rate {} makes network namespaces, for which one must be root", rate);
  }
  leave_network();
  try {
    run_tool("tc -Version");  // nsenter would not say which of its programs is missing
    run_tool("ip link set lo up");
    run_tool("ip link add br0 type bridge");
    run_tool("ip link set br0 up");
    for (int node = 0; node < num_nodes; ++node) {
      add_node(rate);
    }
  } catch (...) {
    remove();
    throw;
  }
}

BenchNetwork::~BenchNetwork() {
  remove();
}

void BenchNetwork::add_node(const std::string& rate) {
  const size_t node = nodes_.size();
  const pid_t pid = start_holder();
  nodes_.push_back({.holder = pid, .address = fmt::format("10.77.0.{}", node + 1)});
  const std::string inside = fmt::format("nsenter --net=/proc/{}/ns/net ", pid);
  run_tool(fmt::format("ip link add node{} type veth peer name eth0 netns {}", node, pid));
  run_tool(fmt::format("ip link set node{} master br0 up", node));
  run_tool(inside + "ip link set lo up");
  run_tool(inside + fmt::format("ip address add {}/24 dev eth0", nodes_.back().address));
  run_tool(inside + fmt::format("tc qdisc add dev eth0 root tbf rate {} burst {} latency {}", rate,
                                kBurst, kLatency));
  run_tool(inside + "ip link set eth0 up");
}

void BenchNetwork::remove() noexcept {
  for (const Node& node : nodes_) {
    ::kill(node.holder, SIGKILL);
    while (::waitpid(node.holder, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  nodes_.clear();
}

}  // namespace lockstep::app

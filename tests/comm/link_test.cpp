// A link that is cut: two ranks, each in a network of its own, joined by a virtual cable, and five
// on three machines. Named errors on both sides within three seconds, though no process has died.
// Needs root.

#include <chrono>
#include <filesystem>
#include <iostream>
#include <sched.h>
#include <sstream>
#include <unistd.h>

#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>

#include "base/env.h"
#include "base/process/process.h"
#include "support/nodes.h"
#include "support/service.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr const char* kNodeVariable = "LOCKSTEP_TEST_NODE";
constexpr const char* kRankVariable = "LOCKSTEP_TEST_RANK";

void run_or_throw(const std::vector<std::string>& argv) {
  const base::Output output = base::run_process({.argv = argv}, base::Deadline::after(20s));
  if (!output.status.ok()) {
    throw IoError("{} {}: {}", argv[0], argv[1], output.err);
  }
}

std::string cable(int node) {
  return "cable" + std::to_string(node);
}
std::string address(int node) {
  return fmt::format("10.77.0.{}", node + 1);
}

// Waits for a line of the test, which drives the nodes.
void await_line() {
  std::string line;
  std::getline(std::cin, line);
}

// One rank in its own network. Says "ready" when it wants its cable, "group" when it has a group;
// prints how that ended.
int node_main(int node) {
  if (::unshare(CLONE_NEWNET) != 0) {
    throw IoError("unshare: {}", base::errno_text(errno));
  }
  std::cout << "ready" << std::endl;
  await_line();
  run_or_throw({"ip", "link", "set", "lo", "up"});
  run_or_throw({"ip", "address", "add", address(node) + "/24", "dev", cable(node)});
  run_or_throw({"ip", "link", "set", cable(node), "up"});
  const StoreOptions options{.endpoint = address(0) + ":29400", .job_id = "link", .secret = "s"};
  const Store store = node == 0 ? Store::host(options) : Store::connect(options);
  Group group = make_group(store, {.name = "pair", .rank = node, .size = 2, .timeout = 60s});
  group.barrier();
  std::cout << "group " << group.backend_name() << std::endl;
  await_line();
  if (node == 0) {
    run_or_throw({"ip", "link", "set", cable(0), "down"});
  }
  const auto start = std::chrono::steady_clock::now();
  std::string message = "no error";
  try {
    for (;;) {
      group.barrier({.timeout = 30s});
    }
  } catch (const PeerLostError& error) {
    message = error.what();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::cout << fmt::format("{:.2f} {}", took.count(), message) << std::endl;
  return 0;
}

// Machines of the second test, by their ranks.
constexpr int kMachineOfRank[] = {0, 0, 1, 1, 2};
constexpr int kRanks = 5;
constexpr int kLostMachine = 2;

// A rank on one of three machines, whose collectives never end by themselves. Says "group" and how
// its group works; prints how that ended.
int rank_main(int rank) {
  const StoreOptions options{
      .endpoint = "10.88.0.1:29400", .job_id = "machines", .secret = "0123456789abcdef"};
  const Store store = rank == 0 ? Store::host(options) : Store::connect(options);
  Group group = make_group(store, {.name = "five", .rank = rank, .size = kRanks, .timeout = 60s});
  group.barrier();
  std::cout << "group " << group.backend_name() << std::endl;
  await_line();
  std::string message = "no error";
  try {
    for (;;) {
      at::Tensor x = at::ones({100'003});
      group.all_reduce(x, {.timeout = 30s});
    }
  } catch (const PeerLostError& error) {
    message = error.what();
  }
  std::cout << message << std::endl;
  await_line();  // its end would tell the others, too
  return 0;
}

// A node, and its two pipes.
struct Node {
  explicit Node(int number)
      : Node({.argv = {"/proc/self/exe"}, .env = {{kNodeVariable, std::to_string(number)}}}) {}

  explicit Node(base::ProcessOptions options) {
    base::FdPair in = base::make_pipe();
    base::FdPair out = base::make_pipe();
    options.stdin_fd = in.read.get();
    options.stdout_fd = out.write.get();
    process = base::Process(std::move(options));
    input = std::move(in.write);
    output = std::move(out.read);
  }

  void go_on() const { base::write_all(input.get(), "\n", 1); }

  std::string line() const {
    std::string text;
    char letter = 0;
    while (::read(output.get(), &letter, 1) == 1 && letter != '\n') {
      text += letter;
    }
    return text;
  }

  base::Process process;
  base::UniqueFd input;
  base::UniqueFd output;
};

TEST(Link, ThatIsCutBecomesAnErrorOnBothSides) {
  LOCKSTEP_NEEDS("namespaces", ::geteuid() == 0
                                   ? std::nullopt
                                   : std::optional<std::string>("network namespaces need root"));
  const Node nodes[] = {Node(0), Node(1)};
  for (const Node& node : nodes) {
    ASSERT_EQ(node.line(), "ready");
  }
  // Both ends are born in the nodes' networks: the test's own never sees them, and they die with
  // the nodes.
  run_or_throw({"ip", "link", "add", cable(0), "netns", std::to_string(nodes[0].process.pid()),
                "type", "veth", "peer", "name", cable(1), "netns",
                std::to_string(nodes[1].process.pid())});
  for (const Node& node : nodes) {
    node.go_on();
  }
  for (const Node& node : nodes) {
    ASSERT_EQ(node.line(), "group gloo");
  }
  nodes[1].go_on();
  nodes[0].go_on();
  for (const Node& node : nodes) {
    std::istringstream answer(node.line());
    double seconds = 0;
    std::string message;
    answer >> seconds;
    std::getline(answer, message);
    EXPECT_LT(seconds, 5) << message;  // three, and time to be told on a busy host
    EXPECT_THAT(message, HasSubstr("gone"));
  }
}

// The three machines reduce together, two ranks on the first two and one on the third, whose cable
// goes.
TEST(Link, OfOneMachineOfThreeEndsAllCollectivesAndNamesIt) {
  LOCKSTEP_NEEDS("namespaces", test::nodes_refusal());
  test::TestNodes machines(3);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<Node> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back(machines.inside(
        kMachineOfRank[rank], {.argv = {self}, .env = {{kRankVariable, std::to_string(rank)}}}));
  }
  for (const Node& rank : ranks) {
    ASSERT_EQ(rank.line(), "group hierarchical");
  }
  for (const Node& rank : ranks) {
    rank.go_on();
  }
  const auto cut = std::chrono::steady_clock::now();
  machines.cut_link(kLostMachine);
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string message = ranks[static_cast<size_t>(rank)].line();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - cut;
    EXPECT_LT(took.count(), 5) << message;  // three, and time to be told on a busy host
    EXPECT_THAT(message, HasSubstr("gone")) << "rank " << rank;
    if (kMachineOfRank[rank] != kLostMachine) {
      EXPECT_THAT(message, HasSubstr("rank 4")) << "rank " << rank;
      EXPECT_THAT(message, HasSubstr("node2")) << "rank " << rank;
    }
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const lockstep::base::Env env;
  const auto node = env.integer(lockstep::kNodeVariable, 0, 1);
  const auto rank = env.integer(lockstep::kRankVariable, 0, lockstep::kRanks - 1);
  if (node || rank) {
    try {
      return node ? lockstep::node_main(static_cast<int>(*node))
                  : lockstep::rank_main(static_cast<int>(*rank));
    } catch (const std::exception& error) {
      std::cout << error.what() << std::endl;
      return 1;
    }
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

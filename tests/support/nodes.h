#pragma once

// Machines on this host, for tests: each is a network, UTS and mount namespace with an address and
// a host name of its own. Nothing of it has a name on the host, whose own network is never touched.
//
//   test
//     switch        a network namespace with a bridge
//     holder        one per node: keeps its namespaces, where programs join it by its pid
//     nsenter ...   what the test starts in a node; not a child of the holder
//
// A node is 10.88.0.<node + 1> on its eth0, a veth pair to the bridge. Its /run is empty but for
// /run/sshd, its /etc/hosts names all nodes, everything else in its file system is the host's.

#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "base/process/process.h"
#include "base/unique_fd.h"

namespace lockstep::test {

// When it goes, or the test's process dies however, every process in a node is killed and all of
// the above goes. Threads: not thread-safe.
class TestNodes {
 public:
  // 1 to 99 of them, ready for use. Throws IoError if they cannot be made: see nodes_refusal().
  explicit TestNodes(int num_nodes);
  ~TestNodes();
  TestNodes(const TestNodes&) = delete;
  TestNodes& operator=(const TestNodes&) = delete;

  int size() const { return static_cast<int>(nodes_.size()); }
  std::string address(int node) const;    // "10.88.0.1"
  std::string host_name(int node) const;  // "node0"

  // The same program, started inside the node, in the same folder: for Process and run_process().
  // The pid is the program's own, and it dies with the thread that started it, as it would outside.
  base::ProcessOptions inside(int node, base::ProcessOptions options) const;

  // The switch's side of the node's cable goes down or up: packets vanish, nobody gets a reset.
  void cut_link(int node);
  void mend_link(int node);

  // All that run in it, but the holder.
  std::vector<pid_t> processes(int node) const;

  // Replaces what the node believes about names ("127.0.1.1 node0").
  void write_hosts(int node, const std::string& text);

 private:
  struct Holder {
    pid_t pid = -1;
    base::UniqueFd
        life;  // its holder ends when this closes, also because the test's process is gone
  };
  static Holder start_holder(const std::string& host_name);  // "" for the switch
  void add_node();
  void remove() noexcept;

  Holder switch_;
  std::vector<Holder> nodes_;
};

// Why nodes cannot be made here, if they cannot: found by making one, once.
std::optional<std::string> nodes_refusal();

}  // namespace lockstep::test

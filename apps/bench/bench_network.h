#pragma once

// A network between emulated nodes, as slow as asked for. It lives in network namespaces without a
// name: they and all that is in them are gone when the last of their processes is, however that
// ends, and the host's own network never sees any of it.
//
//   lockstep bench   moves into a namespace of its own, which holds a bridge
//     holder         one per node: keeps the node's namespace, where ranks join it by its pid
//
// A node is 10.77.0.<node + 1> on its eth0, a veth pair to the bridge whose sending side is
// limited (tc tbf). Ranks of one node talk over its loopback or shared memory.

#include <string>
#include <sys/types.h>
#include <vector>

namespace lockstep::app {

// Throws UsageError unless `rate` is a number of kbit, mbit or gbit.
void check_rate(const std::string& rate);

class BenchNetwork {
 public:
  // Moves this process, which must have no threads yet, out of the host's network. Throws
  // UsageError if this user may not or ip or tc is missing, IoError if one of them fails.
  BenchNetwork(int num_nodes, const std::string& rate);
  ~BenchNetwork();
  BenchNetwork(const BenchNetwork&) = delete;
  BenchNetwork& operator=(const BenchNetwork&) = delete;

  struct Node {
    pid_t holder = -1;    // a process in its namespace: /proc/<pid>/ns/net
    std::string address;  // of its eth0
  };
  const std::vector<Node>& nodes() const { return nodes_; }

 private:
  void add_node(const std::string& rate);
  void remove() noexcept;

  std::vector<Node> nodes_;
};

}  // namespace lockstep::app

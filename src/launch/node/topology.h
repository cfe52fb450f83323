#pragma once

// The cores of a host, as far as they matter for placing ranks.

#include <string>
#include <vector>

namespace lockstep::launch {

// A physical core; numbers are the kernel's.
struct HostCore {
  std::vector<int> cpus;  // its hardware threads
  int package = 0;
  int numa_node = 0;
  int cache = 0;  // the last-level cache: equal numbers share one
};

struct HostTopology {
  std::vector<HostCore> cores;  // neighbours in the machine are neighbours here
};

struct TopologyOptions {
  std::string synthetic;  // "node:2 core:4 pu:2" as in hwloc(7); empty: this host
  std::vector<int> only;  // of a synthetic one: processors that may be used; empty: all
};

// Cores that this process may use, with those of their threads that it may. Throws IoError if hwloc
// cannot tell.
HostTopology read_topology(const TopologyOptions& options = {});

}  // namespace lockstep::launch

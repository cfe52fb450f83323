#pragma once

// Which ranks share a host, and by which address they are reached.

#include <string>
#include <vector>

#include "comm/membership.h"

namespace lockstep::comm {

// One rank, as the others need to know it.
struct Host {
  std::string id;         // equal for ranks that may share memory: boot id, namespaces, node id
  std::string name;       // for people
  std::string local;      // the address from which this rank reaches the store
  std::string store;      // the store's address, as this rank sees it
  std::string interface;  // the address the user wants (LOCKSTEP_INTERFACE), or empty

  std::string to_json() const;
  static Host from_json(const std::string& text);
};

// This process. Throws UsageError if LOCKSTEP_INTERFACE names no address of this host.
Host describe_host(const Store& store);

// The address by which other ranks reach this one. A rank on the store's own host often sees both
// ends as loopback (Debian gives the host's name 127.0.1.1), which no other host can reach: there
// the address counts by which the others see the store. Throws UsageError if none is left.
std::string reachable_address(const std::vector<Host>& hosts, int rank);

// The ranks by host: node_of[rank], and for each node its ranks in order. Nodes are in the order of
// their first rank.
struct NodeMap {
  std::vector<int> node_of;
  std::vector<std::vector<int>> ranks;

  int num_nodes() const { return static_cast<int>(ranks.size()); }
  bool is_even() const;       // as many ranks on each
  bool is_in_blocks() const;  // each node's ranks follow one another
  size_t fewest_ranks() const;
};
NodeMap map_nodes(const std::vector<Host>& hosts);

}  // namespace lockstep::comm

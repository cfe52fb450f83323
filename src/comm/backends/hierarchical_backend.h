#pragma once

// Groups whose ranks share several hosts: shared memory inside a node, Gloo between nodes.
//
// A rail is the set of ranks with the same place on their nodes, one of each node; there are as
// many rails as the smallest node has ranks. In an all-reduce rank i of a node reduces slice i of
// its node's tensors, exchanges it with its rail (to the owner of each part of the slice, which
// sums the nodes in the tree's order, and back), and writes it to every rank of the node. So each
// node sends 2 (H - 1) / H of the bytes, over as many connections as there are rails. On a node
// with more ranks than rails the others contribute their data and help in nothing else.

#include <memory>
#include <string>

#include "comm/backends/team_backend.h"
#include "comm/start/hosts.h"

namespace lockstep::comm {

struct HierarchicalOptions {
  TeamOptions team;
  NodeMap nodes;
  std::string address;  // of this rank, reachable by the other nodes
  Call connect;         // the call that makes the group
};

// Collective.
std::shared_ptr<Backend> make_hierarchical_backend(HierarchicalOptions options);

}  // namespace lockstep::comm

#pragma once

// Where on its host a rank runs. Only processors that this process may use are dealt out.

#include <string>
#include <vector>

#include "launch/node/topology.h"

namespace lockstep::launch {

enum class BindMode {
  Auto,         // Core if the node's ranks have a core each, else None
  None,         // wherever the kernel likes
  Core,         // each rank on cores of its own: those of its NUMA node, shared out among its ranks
  Numa,         // on all cores of its NUMA node
  Socket,       // on all cores of the package of its NUMA node
  CoreComplex,  // on cores of its NUMA node that share a last-level cache, the caches dealt in turn
};

struct PlacementOptions {
  BindMode bind = BindMode::None;
  bool virtual_local_rank = false;  // LOCAL_RANK=0 and one visible GPU for every rank
  bool share_gpu = false;           // several ranks may use one GPU
};

// "auto", "none", "core" or "numa" (--bind). Throws UsageError.
BindMode parse_bind(const std::string& text);

// torchrun's words: "node", "socket", "exclusive" or "core-complex" (--numa-binding). Throws
// UsageError.
BindMode parse_numa_binding(const std::string& text);

struct RankPlacement {
  std::vector<int> cpus;  // empty: not bound
  int num_cores = 0;      // physical ones that are its own share; 0: not bound
};

struct Placement {
  std::vector<RankPlacement> ranks;
  std::string reason;  // what was chosen and why, for the log
};

// A rank's NUMA node is that of its GPU, where it has one and the node is known (`gpu_numa_nodes`,
// by rank; -1: unknown); otherwise neighbouring ranks share nodes in proportion to the nodes'
// cores. Throws UsageError if Core is asked for and a rank would get no core.
Placement place_ranks(BindMode bind, int num_ranks, const HostTopology& host,
                      const std::vector<int>& gpu_numa_nodes = {});

// The same for this host; logs its choice once. BindMode::None costs nothing.
Placement place_on_this_host(const PlacementOptions& options, int num_ranks);

// The GPUs' NUMA nodes by rank, for place_ranks(): rank i has GPU i or, if ranks share GPUs, takes
// them in turn.
std::vector<int> numa_nodes_by_rank(const std::vector<int>& gpu_nodes, int num_ranks, bool share);

// Binds the calling process; does nothing if `cpus` is empty. Returns 0 or errno.
int bind_to_cpus(const std::vector<int>& cpus);

}  // namespace lockstep::launch

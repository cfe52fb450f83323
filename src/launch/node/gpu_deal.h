#pragma once

// Which GPU each rank of a host is to use.

#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

struct GpuDealOptions {
  std::vector<std::string> gpus;       // that a program here sees, as visible_gpus() names them
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES
  int num_nodes = 1;                   // emulated on this host
  int procs_per_node = 1;
  bool share = false;     // --share-gpu: ranks may outnumber GPUs, and take them in turn
  bool one_each = false;  // --virtual-local-rank: a rank sees its own GPU and no other
};

struct RankGpu {
  std::optional<std::string> visible;  // its CUDA_VISIBLE_DEVICES; nothing: as it was
  int number = 0;                      // LOCKSTEP_GPU_INDEX: its GPU, of those that it sees
};

// One per rank, node by node. Ranks are dealt GPUs in order, over all emulated nodes: LOCAL_RANK
// begins at 0 on each node, and two of them must not meet on one GPU by accident. Where the GPUs
// suffice, each node sees its own ones only, so that LOCAL_RANK is right there too, for programs
// that know nothing of lockstep. Each rank sees one only if they are MIG devices, of which CUDA
// shows a process no more.
//
// A rank for which there is none gets a number that no GPU has: that is the program's error to
// report, and only if it wants a GPU. With `one_each` it is the user's: throws UsageError, unless
// nothing says that there are GPUs at all.
std::vector<RankGpu> deal_gpus(const GpuDealOptions& options);

}  // namespace lockstep::launch

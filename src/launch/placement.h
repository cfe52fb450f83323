#pragma once

// Where on its host a rank runs.

namespace lockstep {

enum class BindMode {
  Auto,  // Core if the node's ranks have a core each, else None
  None,  // wherever the kernel likes
  Core,  // each rank on its own share of the cores
  Numa,  // each rank on the cores of one NUMA node, the nodes dealt in turn
};

struct PlacementOptions {
  BindMode bind = BindMode::None;
  bool virtual_local_rank = false;  // LOCAL_RANK=0 and one visible GPU for every rank
};

}  // namespace lockstep

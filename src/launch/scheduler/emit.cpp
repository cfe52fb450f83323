#include "launch/scheduler/emit.h"

#include <algorithm>

#include <lockstep/base/error.h>

namespace lockstep::launch {

void check_emit_options(const EmitOptions& options, const std::string& kind) {
  for (const int num_nodes : {options.num_nodes, std::max(1, options.max_nodes)}) {
    if (num_nodes < 1 || num_nodes > kMaxEmittedNodes) {
      throw UsageError("--emit {}: {} nodes are not in [1, {}]", kind, num_nodes, kMaxEmittedNodes);
    }
  }
  if (options.command.empty()) {
    throw UsageError("--emit {}: no program to start; name it after the flags", kind);
  }
}

}  // namespace lockstep::launch

#include "launch/emit.h"

#include <lockstep/base/error.h>

namespace lockstep {

void check_emit_options(const EmitOptions& options, const std::string& kind) {
  if (options.num_nodes < 1 || options.num_nodes > kMaxEmittedNodes) {
    throw UsageError("--emit {}: {} nodes are not in [1, {}]", kind, options.num_nodes,
                     kMaxEmittedNodes);
  }
  if (options.command.empty()) {
    throw UsageError("--emit {}: no program to start; name it after the flags", kind);
  }
}

}  // namespace lockstep

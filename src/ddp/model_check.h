#pragma once

// Compares what must be the same on all ranks.

#include <string>
#include <vector>

#include <lockstep/comm/group.h>

#include "ddp/parameters.h"

namespace lockstep::ddp {

// Throws UsageError on every rank if names, shapes, types or requires_grad differ from rank 0's;
// the first difference and the rank that has it are named.
void check_same_model(Group& group, const NamedTensors& tensors);

// The words around the first difference: "WHAT: rank 0 has A, rank 2 has B; ADVICE".
struct Difference {
  std::string what;
  std::string advice;
};

// Throws UsageError on every rank if a rank's lines are not rank 0's. Collective.
void check_same_lines(Group& group, const std::vector<std::string>& lines,
                      const Difference& difference);

}  // namespace lockstep::ddp

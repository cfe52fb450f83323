#pragma once

// The model, found the same on all ranks.

#include <lockstep/comm/group.h>

#include "ddp/parameters.h"

namespace lockstep {

// Throws UsageError on every rank if names, shapes, types or requires_grad differ from rank 0's;
// the first difference and the rank that has it are named.
void check_same_model(Group& group, const NamedTensors& tensors);

}  // namespace lockstep

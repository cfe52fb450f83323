#pragma once

// Are the models still equal?

#include <lockstep/comm/group.h>

#include "ddp/parameters.h"

namespace lockstep::ddp {

// Collective. Throws DesyncError on every rank if a tensor's bits differ between ranks: the first
// one is named, with the ranks that differ from rank 0.
void verify_equal(Group& group, const NamedTensors& tensors, int64_t step);

}  // namespace lockstep::ddp

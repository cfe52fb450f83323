#pragma once

// For areas above this one, which know groups by their public header alone.

#include <functional>

#include <lockstep/comm/group.h>

namespace lockstep::weights {

// Collective. What `body` throws on one rank, all ranks throw.
void run_together(Group& group, const std::function<void()>& body);

}  // namespace lockstep::weights

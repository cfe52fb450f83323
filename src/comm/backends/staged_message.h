#pragma once

// Messages between tensors of a GPU; see staged_backend.h.

#include <memory>

#include "comm/backends/backend.h"

namespace lockstep::comm {

// Starts a send or a recv whose Call has its staging. Messages are no part of the order of
// collectives, so each goes its own way: a send waits here until its tensor is on the host, a recv
// is copied to the device when it has come. If the tensor of a send does not become ready within
// the call's time, the group is abandoned, since its receiver waits; throws TimeoutError.
std::shared_ptr<WorkState> start_message(Backend& carrier, Call call);

}  // namespace lockstep::comm

#pragma once

// Groups whose ranks all share one host: every operation through shared memory.

#include <memory>

#include "comm/backends/team_backend.h"

namespace lockstep::comm {

std::shared_ptr<Backend> make_shm_backend(TeamOptions options);

}  // namespace lockstep::comm

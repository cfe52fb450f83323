#pragma once

// Groups whose ranks all share one host: every operation through shared memory.

#include <memory>

#include "comm/backend.h"
#include "comm/local_team.h"

namespace lockstep {

struct ShmOptions {
  std::shared_ptr<Membership> membership;
  GroupOptions group;  // what the user asked for
  std::unique_ptr<LocalTeam> team;
  std::chrono::milliseconds timeout = kDefaultTimeout;  // of operations
};

std::shared_ptr<Backend> make_shm_backend(ShmOptions options);

}  // namespace lockstep

#pragma once

// From the ranks of a group to the backend that suits where they are.

#include <memory>
#include <string>

#include "comm/backends/backend.h"

namespace lockstep::comm {

struct ConnectOptions {
  Store store;
  GroupOptions group;
  std::chrono::milliseconds operation_timeout =
      kGroupTimeout;         // if not the one that making the group has
  bool hosts_store = false;  // this process must outlive the others' use of the store
};

struct Connected {
  std::shared_ptr<Backend> backend;
  std::string reason;  // "all 4 ranks share this host": why this backend and not the others
};

// Throws UsageError if LOCKSTEP_BACKEND or LOCKSTEP_WIRE has a value that is not known.
void check_backend_variables();

// Collective. Throws UsageError if the backend that was asked for cannot serve these ranks.
Connected connect_group(ConnectOptions options);

}  // namespace lockstep::comm

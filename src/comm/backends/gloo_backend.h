#pragma once

// Groups by libtorch's Gloo: TCP between all pairs of ranks.

#include <memory>
#include <string>

#include "comm/backends/backend.h"
#include "comm/membership.h"

namespace lockstep::comm {

struct GlooOptions {
  // This rank's place among those that are connected.
  struct Place {
    int rank = 0;
    int size = 1;
    bool is_part = false;  // a part of a larger group, which does the checks and the goodbye
  };

  std::shared_ptr<Membership> membership;
  GroupOptions group;  // what the user asked for
  Place place;
  std::string prefix = "gloo/";  // of the keys by which the ranks find each other
  std::string address;           // of this rank, reachable by the others
  std::chrono::milliseconds timeout = kDefaultTimeout;  // of operations
  Call connect;                                         // the call that makes the group
};

// Collective over the ranks of `place`.
std::shared_ptr<Backend> make_gloo_backend(GlooOptions options);

}  // namespace lockstep::comm

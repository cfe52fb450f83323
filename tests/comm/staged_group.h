#pragma once

// Groups whose tensors go the way of a GPU's by a test's own rules.

#include <functional>
#include <string>
#include <utility>

#include "comm/backends/staged_backend.h"
#include "comm/every_backend.h"
#include "comm/start/connect.h"
#include "support/late_copies.h"

namespace lockstep::testing_support {

struct StagedRules {
  std::string name;  // of the group, used once in a test
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  std::function<bool(const at::Tensor&)> is_staged = [](const at::Tensor& /*tensor*/) {
    return true;
  };
  LateHooks hooks;
};

// Collective: another group of the same ranks and backend. 25'000 floats are a piece.
inline Group make_staged_group(const Group& group, StagedRules rules) {
  const comm::Connected carrier =
      comm::connect_group({.store = group.store(),
                           .group = {.name = group.backend_name() + "/staged/" + rules.name,
                                     .rank = group.rank(),
                                     .size = group.size(),
                                     .timeout = rules.timeout,
                                     .backend = choice_of(group)}});
  return Group(comm::make_staged_backend(
      {.carrier = carrier.backend,
       .make_copies = [hooks = std::move(rules.hooks)](
                          at::Device /*device*/) { return make_hooked_copies(hooks); },
       .is_staged = std::move(rules.is_staged),
       .piece_bytes = 100'000}));
}

}  // namespace lockstep::testing_support

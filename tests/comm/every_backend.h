#pragma once

// Tests that hold for every backend: TEST_P with this fixture, run(...) for run_ranks(...).

#include <gtest/gtest.h>

#include "base/env.h"
#include "support/fleet.h"

namespace lockstep::testing_support {

class EveryBackend : public ::testing::TestWithParam<Setting> {
 protected:
  template <typename Body>
  void run(int world, Body body, RunOptions options = {}) {
    options.nodes = std::min(GetParam().nodes, world);
    options.backend = GetParam().backend;
    run_ranks(world, body, options);
  }
  bool is_gloo() const { return GetParam().backend == BackendChoice::Gloo; }
};

// In a body: for groups that must be like the one it got.
inline BackendChoice choice_of(const Group& group) {
  const std::string name = group.backend_name();
  return name == "gloo"  ? BackendChoice::Gloo
         : name == "shm" ? BackendChoice::Shm
                         : BackendChoice::Hierarchical;
}

// LOCKSTEP_LONG_TESTS=1: everything, not samples.
inline bool is_long() {
  return base::Env().flag("LOCKSTEP_LONG_TESTS").value_or(false);
}

inline std::string name_of(const ::testing::TestParamInfo<Setting>& info) {
  return info.param.name;
}

}  // namespace lockstep::testing_support

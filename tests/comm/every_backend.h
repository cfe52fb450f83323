#pragma once

// Tests that hold for every backend: TEST_P with this fixture, run(...) for run_ranks(...).

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

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
    options.staged = GetParam().staged;
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

// So long did threads of this host that could run wait for a core, all in all: time in which nobody
// can be expected to have done anything. 0 where the kernel does not tell.
inline int64_t stalled_ns() {
  std::ifstream file("/proc/pressure/cpu");
  std::string line;
  std::getline(file, line);  // "some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS"
  const size_t total = line.find("total=");
  return total == std::string::npos ? 0 : 1000 * std::stoll(line.substr(total + 6));
}

// A moment, by the clock that all processes of a host share, less the time that was stalled before:
// two of them are as far apart as on a host that has nothing else to do.
inline int64_t unstalled_now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count() - stalled_ns();
}

inline std::string name_of(const ::testing::TestParamInfo<Setting>& info) {
  return info.param.name;
}

}  // namespace lockstep::testing_support

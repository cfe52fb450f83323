#pragma once

// What the ranks of `lockstep bench checkpoint` measure.

#include <cstdint>
#include <string>

#include "bench/plan.h"

namespace lockstep {

struct CheckpointBenchPlan {
  int64_t state_bytes = 500'000'000;
  int step_ms = 500;
  std::string folder;
  int repeats = 5;
  bool json = false;  // print one JSON object and nothing else
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CheckpointBenchPlan, state_bytes, step_ms, folder, repeats, json)

}  // namespace lockstep

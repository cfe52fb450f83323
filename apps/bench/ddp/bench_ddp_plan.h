#pragma once

// What the ranks of `lockstep bench ddp` measure.

#include <string>

#include "bench/plan.h"

namespace lockstep {

struct DdpBenchPlan {
  std::string model = "mlp";  // or convnet, transformer
  std::string peer = "c10d";  // c10d::Reducer is measured beside us; or none
  int steps = 45;             // of each variant, all repeats together
  int repeats = 3;            // in [1, steps]
  bool json = false;          // print one JSON object and nothing else
  bool bars = false;          // the table is for a terminal

  bool has_peer() const { return peer == "c10d"; }
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DdpBenchPlan, model, peer, steps, repeats, json, bars)

}  // namespace lockstep

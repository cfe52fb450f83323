#pragma once

// What the ranks of `lockstep bench load` measure.

#include <cstdint>
#include <string>

#include "bench/plan.h"

namespace lockstep {

struct LoadBenchPlan {
  int64_t size_bytes = 1'500'000'000;
  std::string format = "torch";    // or safetensors
  std::string peer = "torch";      // torch.load is measured beside us; or none
  std::string python = "python3";  // the peer's
  std::string peer_script;         // bench/load_peer.py
  std::string folder;              // for the file
  int repeats = 5;
  bool fresh_memory = false;  // parameters that were never written to: the load maps their pages
  bool json = false;          // print one JSON object and nothing else
  bool bars = false;          // the table is for a terminal

  bool has_peer() const { return peer == "torch"; }
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LoadBenchPlan, size_bytes, format, peer, python, peer_script,
                                   folder, repeats, fresh_memory, json, bars)

}  // namespace lockstep

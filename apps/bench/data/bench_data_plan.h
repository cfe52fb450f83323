#pragma once

// What `lockstep bench data` measures.

#include <cstdint>
#include <string>

#include "bench/plan.h"

namespace lockstep {

struct DataBenchPlan {
  int64_t num_pictures = 512;
  int64_t token_megabytes = 256;
  int num_workers = 2;
  int64_t batch_size = 32;
  int repeats = 5;
  std::string peer = "torchvision";  // Python's DataLoader is measured beside us; or none
  std::string python = "python3";    // the peer's
  std::string peer_script;           // bench/data_peer.py
  std::string folder;                // for the files
  bool json = false;                 // print one JSON object and nothing else

  bool has_peer() const { return peer == "torchvision"; }
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DataBenchPlan, num_pictures, token_megabytes, num_workers,
                                   batch_size, repeats, peer, python, peer_script, folder, json)

}  // namespace lockstep

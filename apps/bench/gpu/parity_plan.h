#pragma once

// What the ranks of `lockstep bench gpu-parity` compare.

#include <string>
#include <vector>

#include "bench/plan.h"

namespace lockstep {

struct ParityPlan {
  std::vector<std::string> models = {"mlp", "convnet", "mytransformer", "bert"};
  std::vector<int> ranks = {1, 2, 4};  // each a power of two, at most kParityShards
  int steps = 100;
  std::string device = "cuda";  // or cpu: the same comparison where there is no GPU
  bool json = false;            // print one JSON object and nothing else
  std::string dump;             // a folder for what another program needs to train the same
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ParityPlan, models, ranks, steps, device, json, dump)

inline constexpr int kParityShards = 8;

}  // namespace lockstep

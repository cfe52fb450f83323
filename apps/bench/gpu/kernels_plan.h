#pragma once

// What `lockstep bench gpu --kernels` measures.

#include <string>
#include <vector>

#include "bench/plan.h"

namespace lockstep {

struct KernelsPlan {
  std::vector<std::string> names;  // of kernels; none: all
  std::string device = "cuda";     // or cpu: the twins, on small sizes
  int64_t tokens = 32768;          // rows: the batch times the length of a sequence
  int repeats = 9;
  bool json = false;  // print one JSON object and nothing else
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(KernelsPlan, names, device, tokens, repeats, json)

}  // namespace lockstep

#pragma once

// Which mode a load gets, and why.

#include <cstdint>
#include <string>

#include <lockstep/weights/weights.h>

namespace lockstep::weights {

// What all ranks know alike when they choose.
struct LoadSituation {
  std::string location;
  int num_ranks = 1;
  int num_nodes = 1;
  bool is_remote = false;
  bool same_tensors = true;  // on every rank
  bool seen_by_all = true;   // every rank can open the files
  uint64_t bytes = 0;        // to be read
};

struct LoadChoice {
  LoadMode mode = LoadMode::Each;
  std::string reason;  // empty if it is what was asked for
};

// Throws UsageError if `asked` cannot be done.
LoadChoice choose_mode(LoadMode asked, const LoadSituation& situation);

}  // namespace lockstep::weights

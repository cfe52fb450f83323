#pragma once

// What becomes of the ranks' output.

#include <string>

namespace lockstep {

struct OutputOptions {
  std::string log_dir;  // empty: no log files
  bool prefix = true;   // "r2: " before each line of rank 2
};

}  // namespace lockstep

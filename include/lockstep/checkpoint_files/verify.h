#pragma once

// Whether checkpoints are what was written. Needs no libtorch.

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

struct CheckpointCheck {
  std::string path;
  int64_t step = -1;    // -1: the manifest does not say
  uint64_t bytes = 0;   // of its shards
  std::string problem;  // empty: it verifies
};

// Reads every byte of every checkpoint at `location` (a folder of them, or one itself; a path or
// s3://bucket/prefix), newest first, and compares it with the manifest's checksums. Empty if there
// is none. Not collective. Throws IoError if the folder cannot be listed.
std::vector<CheckpointCheck> verify_checkpoints(const std::string& location);

}  // namespace lockstep

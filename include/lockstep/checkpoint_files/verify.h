#pragma once

// A check that checkpoints still hold what was written. It needs no libtorch and no group.
//
// Example:
//   for (const auto& check : lockstep::verify_checkpoints("runs/cats/checkpoints")) {
//     if (!check.problem.empty()) {
//       std::cerr << check.path << ": " << check.problem << "\n";
//     }
//   }

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

struct CheckpointCheck {
  std::string path;
  int64_t step = -1;    // -1 if the manifest does not say it
  uint64_t bytes = 0;   // the size of its shards
  std::string problem;  // why the checkpoint does not verify; empty if it does
};

// Reads every byte of every checkpoint at `location` and compares it with the checksums of the
// manifest. `location` is a folder of checkpoints or one checkpoint, on a path or on
// s3://bucket/prefix. The results are ordered from the newest to the oldest; there are none if
// there is no checkpoint. A damaged checkpoint is a result with a problem and not an exception. The
// call is not collective: one process does all the reading. Throws IoError if the location cannot
// be listed.
std::vector<CheckpointCheck> verify_checkpoints(const std::string& location);

}  // namespace lockstep

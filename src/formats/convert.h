#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/weight_set.h"

namespace lockstep::formats {

struct ConvertReport {
  size_t num_tensors = 0;
  uint64_t size_bytes = 0;         // of the new file
  std::vector<std::string> tied;   // names that share another tensor's bytes
  size_t num_views = 0;            // tensors that were not contiguous and now are
  size_t num_values_left_out = 0;  // numbers and texts of a torch file, which safetensors lacks
};

// Writes the weights to `path` as its name says: .safetensors, or torch's zip (.pth, .pt, .bin), as
// one file, in bounded memory; the file appears whole or not at all. Every tensor becomes
// contiguous. Ties: torch keeps them shared; safetensors holds the first of them, and its metadata
// maps each other name to that one. A torch file that becomes another one keeps its other values.
// Throws UsageError for a name with another ending and for what the format cannot hold.
ConvertReport convert_weights(const WeightSet& set, const std::string& path);

}  // namespace lockstep::formats

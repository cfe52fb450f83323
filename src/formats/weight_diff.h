#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/weight_set.h"

namespace lockstep::formats {

struct TensorDifference {
  std::string name;
  std::string a;  // "F32 [2, 3]"
  std::string b;
  bool is_compared = false;    // the same shape, and the same type or both floats
  uint64_t num_different = 0;  // elements, counting parts of complex numbers
  double max_difference = 0;   // of floats: the largest |a - b|; NaN: one is and the other is not
};

struct WeightDiff {
  size_t num_equal = 0;  // tensors
  std::vector<std::string> only_a;
  std::vector<std::string> only_b;
  std::vector<TensorDifference> different;

  bool is_equal() const { return only_a.empty() && only_b.empty() && different.empty(); }
};

// Compares every tensor by its name, in bounded memory: floats of any type as double (NaN equals
// NaN, 0 equals -0), everything else bit by bit. Another type is a difference even if all values
// are equal. Throws IoError.
WeightDiff diff_weights(const WeightSet& a, const WeightSet& b);

}  // namespace lockstep::formats

#pragma once

// The numbers of the lesson `average`: built in, or the user's own.

#include <optional>
#include <string>
#include <vector>

namespace lockstep::explain {

struct AverageInput {
  std::vector<std::vector<double>> gradients;  // one row per rank
  std::vector<double> weights;                 // as many as a row has numbers
  double lr = 1.0;
  bool descend = false;  // true: weights - lr * average, as for the gradient of a loss
  bool built_in = true;  // nothing was given: the weights are those of ear, whisker and eye
};

// The flags as they were typed; empty where a flag was not given.
struct AverageFlags {
  std::optional<std::string> gradients;  // JSON: [[1, 2], [3, 4]]
  std::optional<std::string> weights;    // JSON: [0.5, 0.3]
  std::optional<std::string> lr;
  bool descend = false;
};

// What is not given stays built in; but where the built-in weights do not fit the user's gradients,
// all start at 0. Throws UsageError for what is no JSON or no number, for rows of different lengths
// and for weights of another length.
AverageInput parse_average_input(const AverageFlags& flags);

}  // namespace lockstep::explain

#pragma once

// First weights.

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {
class ConfiguredModule;
}  // namespace lockstep

namespace lockstep::models {

// Gives parameters and buffers the first values that the model's header promises. Each one's are a
// function of `seed`, its name (without "bert.", so that heads share their backbone's) and its
// shape: what happens to the others changes nothing, and neither does libtorch's global generator.
void initialise(ConfiguredModule& model, uint64_t seed);

// Does the same for these names alone.
void initialise(ConfiguredModule& model, uint64_t seed, const std::vector<std::string>& names);

}  // namespace lockstep::models

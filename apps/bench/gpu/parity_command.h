#pragma once

#include <string>

namespace lockstep {

// Runs one rank of `lockstep bench gpu-parity`. Returns the exit code: 1 if bits differ that must
// not.
int parity_command(const std::string& plan);

}  // namespace lockstep

#pragma once

#include <string>

namespace lockstep {

// Runs `lockstep bench gpu --kernels`. Returns the exit code.
int kernels_command(const std::string& plan);

}  // namespace lockstep

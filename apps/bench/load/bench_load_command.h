#pragma once

#include <string>

namespace lockstep {

// Runs one rank of `lockstep bench load`. Returns the exit code.
int bench_load_command(const std::string& plan);

}  // namespace lockstep

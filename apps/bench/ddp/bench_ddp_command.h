#pragma once

#include <string>

namespace lockstep {

// Runs one rank of `lockstep bench ddp`. Returns the exit code.
int bench_ddp_command(const std::string& plan);

}  // namespace lockstep

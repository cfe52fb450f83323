#pragma once

#include <string>

namespace lockstep {

// One rank of `lockstep bench ddp`. Returns the exit code.
int bench_ddp_command(const std::string& plan);

}  // namespace lockstep

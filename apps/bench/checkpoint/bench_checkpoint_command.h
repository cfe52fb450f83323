#pragma once

#include <string>

namespace lockstep {

// Runs one rank of `lockstep bench checkpoint`; `text` is the plan. Returns the exit code.
int bench_checkpoint_command(const std::string& text);

}  // namespace lockstep

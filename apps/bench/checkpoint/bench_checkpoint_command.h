#pragma once

#include <string>

namespace lockstep {

// `bench checkpoint` on one rank; `text` is the plan. Returns the exit code.
int bench_checkpoint_command(const std::string& text);

}  // namespace lockstep

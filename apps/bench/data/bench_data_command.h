#pragma once

#include <string>

namespace lockstep {

// `lockstep bench data`, which reads and checks the command line and hands over this plan. Returns
// the exit code.
int bench_data_command(const std::string& plan);

}  // namespace lockstep

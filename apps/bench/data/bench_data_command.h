#pragma once

#include <string>

namespace lockstep {

// Measures what `lockstep bench data` has read from its command line. Returns the exit code.
int bench_data_command(const std::string& plan);

}  // namespace lockstep

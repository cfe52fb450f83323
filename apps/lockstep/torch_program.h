#pragma once

// lockstep-torch, the program with the sub-commands that need tensors.

#include <string>
#include <vector>

namespace lockstep::app {

// Beside the running lockstep; it need not exist.
std::string torch_program_path();

// The same, but throws UsageError, saying how to get it, if it does not.
std::string find_torch_program();

// Becomes lockstep-torch. Returns only by throwing IoError.
int exec_torch_program(const std::string& command, const std::vector<std::string>& arguments);

}  // namespace lockstep::app

#pragma once

// The programs with the sub-commands that need tensors, which stand beside the running lockstep:
// lockstep-torch trains and evaluates, lockstep-bench measures, lockstep-explain teaches.

#include <string>
#include <vector>

namespace lockstep::app {

// Where the program belongs; it need not exist.
std::string sibling_path(const std::string& name);

// The same, but throws UsageError, saying how to get it, if it does not exist.
std::string find_sibling(const std::string& name);

// Becomes the program, as `NAME COMMAND ARGUMENTS...`. Returns only by throwing: UsageError if it
// does not exist, IoError if it cannot be started.
int exec_sibling(const std::string& name, const std::string& command,
                 const std::vector<std::string>& arguments);

}  // namespace lockstep::app

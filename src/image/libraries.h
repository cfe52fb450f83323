#pragma once

// The shared libraries that a program of this host needs.

#include <string>
#include <vector>

namespace lockstep::image {

// Paths as the dynamic loader finds them, the loader itself included; empty for a script or a
// static program. Asks the loader (--list): the program itself is never executed. Throws UsageError
// if one is not found, if the program is for another machine, or if it names a loader that is not
// one of the system's.
std::vector<std::string> needed_libraries(const std::string& program);

// True for a folder that the loader searches by itself, or one inside it (/lib, /usr/lib64, ...).
bool is_system_library(const std::string& path);

}  // namespace lockstep::image

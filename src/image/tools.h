#pragma once

// Programs of the host that do part of the work: found, run to their end, and their failures told
// in one sentence.

#include <string>
#include <vector>

namespace lockstep::image {

// Where in PATH a program is; empty if nowhere.
std::string find_tool(const std::string& name);

struct ToolRun {
  std::vector<std::string> argv;  // REQUIRED
  std::string package;            // REQUIRED: the Debian package that has it, for the message
  std::string task;               // REQUIRED: "pack the image", for the message
};

// Throws UsageError if the program is not there, IoError with its last words if it fails; a full
// disk is named as such.
void run_tool(const ToolRun& run);

}  // namespace lockstep::image

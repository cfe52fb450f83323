#pragma once

// Finds and runs programs of the host that do part of the work, and tells their failures in one
// sentence.

#include <string>
#include <vector>

namespace lockstep::image {

// The path of a program that is searched in PATH; empty if it is not there.
std::string find_tool(const std::string& name);

struct ToolRun {
  std::vector<std::string> argv;  // REQUIRED
  std::string package;            // REQUIRED: the Debian package that has it, for the message
  std::string task;               // REQUIRED: "pack the image", for the message
};

// Throws UsageError if the program is not there, IoError with its last output if it fails; a full
// disk is named as such.
void run_tool(const ToolRun& run);

}  // namespace lockstep::image

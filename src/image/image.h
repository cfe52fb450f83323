#pragma once

// Checks an image before a job depends on it, and runs a command in one by hand.

#include <string>
#include <vector>

#include <lockstep/base/error.h>

#include "image/container.h"
#include "image/gpu_driver.h"
#include "image/squashfs.h"

namespace lockstep::image {

struct ImageInfo {
  SquashfsInfo squashfs;
  std::string machine;  // "x86-64": this host's; empty if the image has no ELF file to tell by
  std::string program;  // where the program is in the image; empty if none was asked for
  GpuNeeds gpu;
  bool has_shell = false;  // /bin/sh, which Enroot, pyxis and `image enter` without a command need
};

// The program cannot be started in the image: `exit_code` is what a shell answers then.
class ProgramError : public UsageError {
 public:
  ProgramError(const std::string& what, int code) : UsageError(what), exit_code(code) {}
  const int exit_code;  // 127: it is not there; 126: it is not a program
};

// Enters the image, with its mounts, in a process of its own and looks around there: what passes
// here runs. `program`: as it will be given to execvp (a path, or a name that is searched in the
// image's PATH); empty: none. Call it in a process without threads.
// Throws FormatError (truncated, not squashfs, ...), UsageError (a mount, another architecture),
// ProgramError (no such program, not executable, its interpreter or loader is missing) or IoError
// (the kernel refuses, the image cannot be read).
ImageInfo check_image(const ContainerOptions& options, const std::string& program = "");

// Runs `command` in the image with this process's streams and waits for it; the answer is its exit
// code as a shell has it. With another runtime than Builtin this process becomes that runtime's.
int run_in_image(const ContainerOptions& options, const std::vector<std::string>& command);

}  // namespace lockstep::image

#pragma once

// Turns the program that a user names into the command that each rank executes.

#include <string>
#include <vector>

namespace lockstep::launch {

struct ProgramOptions {
  std::vector<std::string> program;  // REQUIRED: program, module or script, and its arguments
  bool module = false;               // it is a Python module
  bool run_path = false;             // a script, folder or zip for Python's runpy.run_path
  bool no_python = false;            // executed as it is, whatever its name
  std::string python = "python3";
  bool is_here = true;  // false: the program is in an image, where nobody can look now
};

// What torchrun would give to Python runs under Python, unbuffered: a file named *.py, a folder,
// and, if it is not executable, a zip, a script whose "#!" names Python and a file without an
// extension. Anything else (a binary, a script with "#!" and chmod +x, a name in PATH) runs as it
// is. Throws UsageError if there is no program or two of the flags are set.
std::vector<std::string> make_command(const ProgramOptions& options);

struct RankNumbers {
  int rank = 0;
  int local_rank = 0;
  int world_size = 1;
};

// {rank}, {local_rank} and {world_size} replaced in the arguments, for programs that are told their
// rank on the command line. A backslash is an escape: \{rank} becomes the text {rank}. A name after
// "$" is a shell's variable and stays, but for torchrun's own ${local_rank}.
std::vector<std::string> fill_placeholders(std::vector<std::string> command,
                                           const RankNumbers& numbers);

}  // namespace lockstep::launch

#pragma once

// The main() of lockstep-torch, lockstep-bench and lockstep-explain: the programs with the
// sub-commands that need tensors. Users type `lockstep`, which starts them, on every rank where
// ranks are needed.

#include <span>
#include <string_view>

namespace lockstep::app {

// Takes the command line from the sub-command's own name on, as a main() of its own would.
struct RankCommand {
  std::string_view name;
  int (*function)(int argc, char** argv);
};

// Runs the command that the line names, and returns its exit code: 2 for a UsageError, 1 for
// another exception; either is printed in one sentence.
int run_rank_program(std::string_view program, std::span<const RankCommand> commands, int argc,
                     char** argv);

}  // namespace lockstep::app

#pragma once

// The command line of `lockstep run`, and the PET_* variables that stand for it.

#include <optional>
#include <string>
#include <vector>

#include "base/env.h"
#include "commands.h"
#include "launch/flags/run_flags.h"

namespace lockstep::app {

struct ReadFlags {
  launch::RunFlags flags;
  std::vector<std::string> given;      // as --name or --name=value, the variables' too
  std::vector<std::string> variables;  // PET_* that took the place of flags
};

// Every flag can come from the environment as PET_<NAME>, as with torchrun: --nnodes is PET_NNODES,
// a flag wins. Nothing if help was asked for, which is then printed. Throws UsageError.
std::optional<ReadFlags> read_run_flags(const Arguments& arguments, const base::Env& env);

}  // namespace lockstep::app

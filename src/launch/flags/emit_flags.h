#pragma once

// Turns the flags of `lockstep run --emit` into the options of what is emitted.

#include <string>
#include <vector>

#include "launch/flags/run_flags.h"
#include "launch/scheduler/emit.h"

namespace lockstep::launch {

// What `lockstep run FLAGS --emit KIND` means; `given` are its flags as --name=value. Throws
// UsageError for flags that say what the scheduler decides (--hosts, --node-rank, ...), and for a
// value that `lockstep run` would refuse there.
EmitOptions emit_options(const RunFlags& flags, const std::vector<std::string>& given);

}  // namespace lockstep::launch

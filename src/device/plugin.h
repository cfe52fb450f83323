#pragma once

// lockstep's own CUDA code, in a library of its own that is loaded where a driver is.

#include <string>

#include "device/plugin_api.h"

namespace lockstep::device {

// Looks for liblockstep_cuda.so: LOCKSTEP_CUDA_PLUGIN, then beside the program, then in
// ../lib/lockstep, then in the program's run path: `cmake --install` puts it where one of the last
// two finds it. Loads it after libtorch's CUDA library; only the first call does
// anything. A file that cannot be loaded, or is of another version, is a UsageError if
// LOCKSTEP_CUDA_PLUGIN names it, and else a warning: everything works without a plug-in.
void load_plugin();

// Null where there is none: everything works without it, more slowly.
const LockstepCudaPlugin* plugin();

// What plugin() is, in words: its path, or why there is none.
std::string plugin_state();

// Throws InternalError if a function of the plug-in has failed.
void check_plugin(const char* error, const char* what);

}  // namespace lockstep::device

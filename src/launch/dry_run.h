#pragma once

// `lockstep run --dry-run`: what would run where, without running it.

#include <string>

#include "launch/launch.h"

namespace lockstep::launch {

// Lines for standard output. Nothing is started, opened or written. Throws UsageError as run_job()
// would.
std::string dry_run_text(const LaunchOptions& options);

}  // namespace lockstep::launch

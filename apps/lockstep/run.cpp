#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "commands.h"
#include "launch/launch.h"
#include "run_flags.h"

namespace lockstep::app {

int run(const Arguments& arguments) {
  const auto read = read_run_flags(arguments, Env());
  if (!read) {
    return 0;
  }
  LaunchOptions options;
  try {
    options = launch_options(read->flags, RunHost::this_host());
  } catch (const UsageError& error) {
    if (read->variables.empty()) {
      throw;
    }
    throw UsageError("{}; set in the environment: {}", error.what(),
                     fmt::join(read->variables, ", "));
  }
  return run_job(options);
}

}  // namespace lockstep::app

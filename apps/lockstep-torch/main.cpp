// lockstep-torch: the sub-commands of `lockstep` that need tensors. Users type `lockstep`, which
// starts this program, on every rank where ranks are needed.

#include <cstdio>
#include <exception>
#include <string_view>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "bench/allreduce/bench_command.h"
#include "eval_command.h"
#include "explain_command.h"
#include "train_command.h"
#include "version_command.h"

namespace {

// Takes the command line from the sub-command's own name on, as a main() of its own would.
struct Command {
  std::string_view name;
  int (*function)(int argc, char** argv);
};

constexpr Command kCommands[] = {
    {"bench", lockstep::bench_command},       {"eval", lockstep::eval_command},
    {"explain", lockstep::explain_command},   {"train", lockstep::train_command},
    {"--version", lockstep::version_command},
};

constexpr const char* kUsage =
    "lockstep-torch: the part of lockstep that needs tensors; `lockstep` starts it.\n\n"
    "Usage: lockstep-torch bench|eval|explain|train [OPTIONS]\n"
    "       lockstep-torch --version\n";

}  // namespace

int main(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h") {
    fmt::print("{}", kUsage);
    return 0;
  }
  try {
    for (const Command& command : kCommands) {
      if (name == command.name) {
        return command.function(argc - 1, argv + 1);
      }
    }
    fmt::print(stderr, "lockstep-torch: there is no command \"{}\"\n\n{}", name, kUsage);
    return 2;
  } catch (const lockstep::UsageError& error) {
    fmt::print(stderr, "lockstep {}: {}\n", name, error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep {}: {}\n", name, error.what());
    return 1;
  }
}

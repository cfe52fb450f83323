// lockstep: the command that users type. Links no libtorch, so that it answers at once; what needs
// tensors is in lockstep-torch, beside it.

#include <cstdio>
#include <exception>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/config.h"
#include "commands.h"

namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*function)(const lockstep::app::Arguments&);
};

constexpr Command kCommands[] = {
    {"run", "start a program on all ranks and wait until the last of them has ended",
     lockstep::app::run},
    {"train", "train from a recipe", lockstep::app::train},
    {"eval", "score, generate from or export the model of a checkpoint", lockstep::app::eval},
    {"explain", "show the ideas of data-parallel training, step by step, on live ranks",
     lockstep::app::explain},
    {"bench", "measure collectives, training steps and the launcher, next to PyTorch's",
     lockstep::app::bench},
    {"inspect", "show, verify, convert and compare files of weights or tokens",
     lockstep::app::inspect},
    {"image", "build, check and enter a job image (.sqsh)", lockstep::app::image},
    {"doctor", "check this machine; say what is wrong and how to fix it", lockstep::app::doctor},
};

int help() {
  fmt::print("lockstep trains one libtorch model on many processes as if it were one.\n\n");
  fmt::print("Usage: lockstep COMMAND [OPTIONS]\n\nCommands:\n");
  for (const Command& command : kCommands) {
    fmt::print("  {:<9}{}\n", command.name, command.summary);
  }
  fmt::print(
      "\nOptions:\n"
      "  -h,--help      this text; `lockstep COMMAND --help` for a command\n"
      "  --version      versions of lockstep and of what it is linked with\n"
      "\nExamples:\n"
      "  lockstep run --nproc-per-node 4 ./my_program --epochs 3\n"
      "  lockstep explain average\n"
      "  lockstep doctor\n");
  return 0;
}

int dispatch(const lockstep::app::Arguments& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" ||
      arguments[0] == "help") {
    return help();
  }
  if (arguments[0] == "--version") {
    return lockstep::app::version();
  }
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (arguments[0] == command.name) {
      return command.function({arguments.begin() + 1, arguments.end()});
    }
    names.emplace_back(command.name);
  }
  const std::string near = lockstep::base::nearest(arguments[0], names);
  throw lockstep::UsageError("there is no command {}{}", arguments[0],
                             near.empty() ? "" : fmt::format("; did you mean {}?", near));
}

}  // namespace

int main(int argc, char** argv) {
  // With the command's name only once it is known to be one.
  std::string name = "lockstep";
  for (const Command& command : kCommands) {
    if (argc > 1 && std::string(argv[1]) == command.name) {
      name += fmt::format(" {}", command.name);
    }
  }
  try {
    return dispatch({argv + 1, argv + argc});
  } catch (const lockstep::UsageError& error) {
    fmt::print(stderr, "{}: {} (see {} --help)\n", name, error.what(), name);
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return 1;
  }
}

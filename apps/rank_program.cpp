#include "rank_program.h"

#include <cstdio>
#include <exception>
#include <string>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::app {
namespace {

std::string usage(std::string_view program, std::span<const RankCommand> commands) {
  std::string text =
      fmt::format("{}: a part of lockstep that needs tensors; `lockstep` starts it.\n\n", program);
  std::string_view before = "Usage: ";
  for (const RankCommand& command : commands) {
    text += fmt::format("{}{} {}{}\n", before, program, command.name,
                        command.name.starts_with('-') ? "" : " [OPTIONS]");
    before = "       ";
  }
  return text;
}

}  // namespace

int run_rank_program(std::string_view program, std::span<const RankCommand> commands, int argc,
                     char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h") {
    fmt::print("{}", usage(program, commands));
    return 0;
  }
  try {
    for (const RankCommand& command : commands) {
      if (name == command.name) {
        return command.function(argc - 1, argv + 1);
      }
    }
    fmt::print(stderr, "{}: there is no command \"{}\"\n\n{}", program, name,
               usage(program, commands));
    return 2;
  } catch (const UsageError& error) {
    fmt::print(stderr, "lockstep {}: {}\n", name, error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep {}: {}\n", name, error.what());
    return 1;
  }
}

}  // namespace lockstep::app

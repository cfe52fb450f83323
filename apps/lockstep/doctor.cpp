#include "launch/doctor.h"

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "command_line.h"
#include "commands.h"
#include "torch_program.h"

namespace lockstep::app {

int doctor(const Arguments& arguments) {
  bool as_json = false;
  CLI::App app("Checks what lockstep needs of this machine.", "lockstep doctor");
  app.add_flag("--json", as_json,
               "Print {\"ok\", \"checks\": [{\"name\", \"status\", \"found\", \"fix\"}]}");
  app.footer(
      "Examples:\n"
      "  lockstep doctor\n"
      "  lockstep doctor --json | jq '.checks[] | select(.status == \"PROBLEM\")'\n"
      "\n"
      "Exit code: 1 if there is a PROBLEM; a note is worth reading and no more.\n");
  SplitArguments split = split_arguments(app, arguments);
  if (!split.command.empty()) {
    throw UsageError("doctor takes no argument {}", split.command.front());
  }
  if (!parse_flags(app, std::move(split.flags))) {
    return 0;
  }
  const auto checks = run_checks({.torch_program = torch_program_path()});
  fmt::print("{}", as_json ? checks_json(checks) : checks_table(checks));
  return is_healthy(checks) ? 0 : 1;
}

}  // namespace lockstep::app

#include <cmath>

#include <lockstep/base/error.h>

#include "command_line.h"
#include "commands.h"
#include "launch/launch.h"

namespace lockstep::app {

namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  lockstep run --nproc-per-node 4 ./my_program --epochs 3\n"
    "  lockstep run --nproc-per-node 4 --local-nodes 2 ./my_program     two emulated nodes\n"
    "  lockstep run --nproc-per-node 8 --log-dir logs -- python3 train.py\n"
    "\n"
    "Exit code: 0 if every rank ends with 0; that of the first rank that fails (128 + signal if a\n"
    "signal killed it); 126 or 127 if the program cannot be started; 2 for a mistake on this "
    "line.\n";

std::chrono::nanoseconds parse_seconds(const std::string& flag, const std::string& text) {
  constexpr double kMaxSeconds = 86400;
  double seconds = -1;
  if (!CLI::detail::lexical_cast(text, seconds) || !(seconds >= 0) || seconds > kMaxSeconds) {
    throw UsageError("{} {} is not a number of seconds in [0, {}]", flag, text, kMaxSeconds);
  }
  return std::chrono::nanoseconds(std::llround(seconds * 1e9));
}

}  // namespace

int run(const Arguments& arguments) {
  LaunchOptions options;
  std::string procs = "1", nodes = "1", grace = "10", isolation = "auto";
  bool no_prefix = false;
  CLI::App app("Starts PROGRAM on every rank and stays until the last of its processes is gone.",
               "lockstep run");
  app.add_option("--nproc-per-node", procs, "Ranks on each node (1)")->type_name("N");
  app.add_option("--local-nodes", nodes, "Nodes to emulate on this host (1)")->type_name("M");
  app.add_option("--log-dir", options.output.log_dir,
                 "Keep each rank's output under DIR/<job>/attempt_0/rank_<R>")
      ->type_name("DIR");
  app.add_flag("--no-prefix", no_prefix, "Write the ranks' lines without \"r2: \" before them");
  app.add_option("--stop-grace", grace, "From SIGTERM to SIGKILL when the job is stopped (10)")
      ->type_name("SECONDS");
  app.add_option(
         "--isolation", isolation,
         "How leftovers are found: pidns (a PID namespace), guardian (a watching parent), or "
         "auto: pidns where it is permitted")
      ->type_name("auto|pidns|guardian");
  // For the help alone: what follows the flags is cut off before CLI11 sees it.
  std::vector<std::string> unused;
  app.add_option("PROGRAM", unused, "What to run, searched in PATH, and its arguments")
      ->type_name("[ARGS...]");
  app.footer(kExamples);

  SplitArguments split = split_arguments(app, arguments);
  if (!parse_flags(app, std::move(split.flags))) {
    return 0;
  }
  if (split.command.empty()) {
    throw UsageError("no program given; for example: lockstep run --nproc-per-node 4 ./my_program");
  }
  options.procs_per_node =
      static_cast<int>(whole_number("--nproc-per-node", procs, 1, kMaxProcsPerNode));
  options.local_nodes = static_cast<int>(whole_number("--local-nodes", nodes, 1, kMaxLocalNodes));
  options.stop_grace = parse_seconds("--stop-grace", grace);
  options.isolation = parse_isolation(isolation);
  options.output.prefix = !no_prefix;
  options.command = std::move(split.command);
  return run_job(options);
}

}  // namespace lockstep::app

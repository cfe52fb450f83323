#include <filesystem>
#include <optional>

#include "bench/checkpoint/bench_checkpoint_plan.h"
#include "bench/flags.h"
#include "command_line.h"
#include "commands.h"
#include "launch/launch.h"
#include "sibling_program.h"

namespace lockstep::app {

namespace {

constexpr int kMaxRanks = 64;
constexpr int kMaxRepeats = 1000;
constexpr int kMaxStepMs = 60'000;
constexpr int64_t kMinStateBytes = 1'000'000;
constexpr int64_t kMaxStateBytes = 64'000'000'000;

constexpr const char* kDescription =
    "Measures what a checkpoint costs the training that goes on: the ranks train a transformer, "
    "and "
    "its state is saved now and then. Beside it stand the fastest save for which all ranks wait "
    "and a plain write to the disk.";

constexpr const char* kExamples =
    "Examples:\n"
    "  lockstep bench checkpoint --state 500MB --ranks 4 --json\n"
    "  lockstep bench checkpoint --state 2GB --ranks 2 --folder /mnt/scratch\n"
    "\n"
    "The stall is the sum of (step - calm step) from the begin of a save to its commit. Figures "
    "are\n"
    "medians of --repeats, in each of which all variants have their turn and training is saved "
    "four\n"
    "times. SIZE is as in dd: 64M is 64 * 2^20 bytes, 64MB is 64 * 10^6.\n"
    "How it is measured: docs/concepts/bench.md.\n"
    "Exit code: 0; 1 for a wrong checkpoint or a lost rank; 2 for a mistake on this line.\n";

struct Request {
  CheckpointBenchPlan plan;
  int num_ranks = 4;
};

void add_flags(CLI::App& app, Request& request) {
  CheckpointBenchPlan& plan = request.plan;
  show_defaults(app);
  app.add_option("--state", plan.state_bytes, "What is saved, as 64MB or 1.5GB")
      ->type_name("SIZE")
      ->transform(size_in(kMinStateBytes, kMaxStateBytes));
  app.add_option("--ranks", request.num_ranks, "Ranks in all")->check(CLI::Range(1, kMaxRanks));
  app.add_option("--step-ms", plan.step_ms,
                 "About how long a calm step takes, in milliseconds; the batch is as large as that "
                 "allows")
      ->check(CLI::Range(1, kMaxStepMs));
  app.add_option("--folder", plan.folder, "Where to save")->type_name("DIR");
  app.add_option("--repeats", plan.repeats, "How often to measure; the median counts")
      ->check(CLI::Range(1, kMaxRepeats));
  add_json_flag(app, plan.json);
  app.footer(kExamples);
}

// Returns nothing if the line was --help, which is then printed.
std::optional<Request> parse_request(const Arguments& arguments) {
  Request request;
  request.plan.folder = std::filesystem::temp_directory_path().string();
  CLI::App app(kDescription, "lockstep bench checkpoint");
  add_flags(app, request);
  return parse_only_flags(app, arguments) ? std::optional(request) : std::nullopt;
}

}  // namespace

int bench_checkpoint(const Arguments& arguments) {
  const auto request = parse_request(arguments);
  if (!request) {
    return 0;
  }
  const std::string program = find_sibling("lockstep-bench");
  return launch::run_job({.name = "lockstep bench",
                          .procs_per_node = request->num_ranks,
                          .output = {.prefix = false},
                          .command = {program, "bench", "checkpoint", plan_text(request->plan)}});
}

}  // namespace lockstep::app

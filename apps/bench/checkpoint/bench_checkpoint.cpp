#include <cmath>
#include <filesystem>
#include <optional>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "command_line.h"
#include "commands.h"
#include "launch/launch.h"
#include "torch_program.h"

namespace lockstep::app {

namespace {

constexpr int kMaxRanks = 64;
constexpr int kMaxRepeats = 1000;
constexpr int kMaxStepMs = 60'000;

constexpr const char* kDescription =
    "What a checkpoint costs the training that goes on: every rank computes (matrix products), "
    "changes its state and meets the others in every step, and the state is saved now and then; "
    "beside a save by rank 0 alone, for which all wait, and beside a plain write to the disk.";

constexpr const char* kExamples =
    "Examples:\n"
    "  lockstep bench checkpoint --state 500MB --ranks 4 --json\n"
    "  lockstep bench checkpoint --state 2GB --ranks 2 --folder /mnt/scratch\n"
    "\n"
    "stall: the sum of (step - calm step) from the save's begin to its commit. Medians of\n"
    "--repeats, all variants in turn, with four saves in each.\n"
    "How it is measured: docs/concepts/bench.md.\n"
    "Exit code: 0; 1 for a wrong checkpoint or a lost rank; 2 for a mistake on this line.\n";

struct Request {
  double state_bytes = 0;
  int num_ranks = 0;
  int repeats = 0;
  int step_ms = 0;
  std::string folder;
  bool json = false;
};

struct Texts {
  std::string state = "500MB", ranks = "4", repeats = "5", step_ms = "500";
};

void add_flags(CLI::App& app, Request& request, Texts& texts) {
  app.add_option("--state", texts.state, "What is saved, as 64MB or 1.5GB (500MB)")
      ->type_name("SIZE");
  app.add_option("--ranks", texts.ranks, "Ranks in all (4)")->type_name("N");
  app.add_option("--step-ms", texts.step_ms, "About how long a calm step computes (500)")
      ->type_name("MS");
  app.add_option("--folder", request.folder, "Where to save (the folder for temporary files)")
      ->type_name("DIR");
  app.add_option("--repeats", texts.repeats, "The median of so many counts (5)")->type_name("R");
  app.add_flag("--json", request.json,
               "Print one JSON object, raw times included, and nothing else");
  app.footer(kExamples);
}

// Nothing if it was --help.
std::optional<Request> parse_request(const Arguments& arguments) {
  Request request;
  Texts texts;
  CLI::App app(kDescription, "lockstep bench checkpoint");
  add_flags(app, request, texts);
  if (!parse_only_flags(app, arguments)) {
    return std::nullopt;
  }
  request.state_bytes = size_in_bytes("--state", texts.state);
  request.num_ranks = static_cast<int>(whole_number("--ranks", texts.ranks, 1, kMaxRanks));
  request.repeats = static_cast<int>(whole_number("--repeats", texts.repeats, 1, kMaxRepeats));
  request.step_ms = static_cast<int>(whole_number("--step-ms", texts.step_ms, 1, kMaxStepMs));
  if (request.folder.empty()) {
    request.folder = std::filesystem::temp_directory_path().string();
  }
  return request;
}

}  // namespace

int bench_checkpoint(const Arguments& arguments) {
  const auto request = parse_request(arguments);
  if (!request) {
    return 0;
  }
  const nlohmann::json plan{{"state_bytes", std::llround(request->state_bytes)},
                            {"step_ms", request->step_ms},
                            {"folder", request->folder},
                            {"repeats", request->repeats},
                            {"json", request->json}};
  return launch::run_job({.name = "lockstep bench",
                          .procs_per_node = request->num_ranks,
                          .output = {.prefix = false},
                          .command = {find_torch_program(), "bench", "checkpoint", plan.dump()}});
}

}  // namespace lockstep::app

#include <optional>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "command_line.h"
#include "commands.h"
#include "launch/launch.h"
#include "torch_program.h"

namespace lockstep::app {

namespace {

constexpr int kMaxRanks = 64;
constexpr int kMaxSteps = 1'000'000;

const Names kModels = {"mlp", "convnet", "transformer"};
const Names kPeers = {"c10d", "none"};

constexpr const char* kDescription =
    "Measures a training step on ranks that it starts itself: bare, with "
    "DistributedDataParallel, and with PyTorch's own reducer over Gloo, step by step in turn.";

constexpr const char* kExamples =
    "Examples:\n"
    "  lockstep bench ddp --model mlp --ranks 4\n"
    "  lockstep bench ddp --model transformer --ranks 4 --json\n"
    "  lockstep bench ddp --model convnet --ranks 1 --peer none --steps 90\n"
    "\n"
    "Models: mlp, six Linear(1024, 1024), batch 8; convnet, ResNet-18 on 8 pictures of 64 x 64;\n"
    "transformer, 4 layers of width 128, 3000 tokens, batch 8 x 64. One thread per rank. Times "
    "are\n"
    "of the slowest rank, optimizer included. How it is measured: docs/concepts/bench.md.\n"
    "Exit code: 0; 1 for a wrong result or a lost rank; 2 for a mistake on this line.\n";

// The command line, checked.
struct Request {
  std::string model = "mlp";
  std::string peer = "c10d";
  int num_ranks = 0;
  int steps = 0;
  int repeats = 0;
  bool json = false;
};

struct Texts {
  std::string ranks = "4", steps = "45", repeats = "3";
};

void add_flags(CLI::App& app, Request& request, Texts& texts) {
  app.add_option("--model", request.model, "What to train (mlp)")
      ->type_name("mlp|convnet|transformer");
  app.add_option("--ranks", texts.ranks, "Ranks in all (4)")->type_name("N");
  app.add_option("--peer", request.peer, "Whom to measure beside us (c10d)")
      ->type_name("c10d|none");
  app.add_option("--steps", texts.steps, "Timed steps of each variant, all repeats together (45)")
      ->type_name("K");
  app.add_option("--repeats", texts.repeats, "The median of so many medians counts (3)")
      ->type_name("R");
  app.add_flag("--json", request.json,
               "Print one JSON object, raw times included, and nothing else");
  app.footer(kExamples);
}

// Nothing if it was --help.
std::optional<Request> parse_request(const Arguments& arguments) {
  Request request;
  Texts texts;
  CLI::App app(kDescription, "lockstep bench ddp");
  add_flags(app, request, texts);
  if (!parse_only_flags(app, arguments)) {
    return std::nullopt;
  }
  check_one_of("--model", request.model, kModels);
  check_one_of("--peer", request.peer, kPeers);
  request.num_ranks = static_cast<int>(whole_number("--ranks", texts.ranks, 1, kMaxRanks));
  request.steps = static_cast<int>(whole_number("--steps", texts.steps, 1, kMaxSteps));
  request.repeats = static_cast<int>(whole_number("--repeats", texts.repeats, 1, kMaxSteps));
  if (request.steps < request.repeats) {
    throw UsageError("--steps {} cannot be dealt to --repeats {}; give at least one step to each",
                     request.steps, request.repeats);
  }
  return request;
}

}  // namespace

int bench_ddp(const Arguments& arguments) {
  const auto request = parse_request(arguments);
  if (!request) {
    return 0;
  }
  const nlohmann::json plan{{"model", request->model}, {"peer", request->peer},
                            {"steps", request->steps}, {"repeats", request->repeats},
                            {"json", request->json},   {"bars", ::isatty(STDOUT_FILENO) == 1}};
  return launch::run_job({.name = "lockstep bench",
                          .procs_per_node = request->num_ranks,
                          .output = {.prefix = false},
                          .command = {find_torch_program(), "bench", "ddp", plan.dump()}});
}

}  // namespace lockstep::app

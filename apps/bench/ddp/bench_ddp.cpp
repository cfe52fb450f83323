#include <optional>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "bench/ddp/bench_ddp_plan.h"
#include "bench/flags.h"
#include "command_line.h"
#include "commands.h"
#include "launch/launch.h"
#include "sibling_program.h"

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
    "transformer, MyTransformer with 4 layers of width 128, 3000 words, batch 8 x 64. One thread\n"
    "per rank. Times are those of the slowest rank, optimizer included. How it is measured:\n"
    "docs/concepts/bench.md.\n"
    "Exit code: 0; 1 for a wrong result or a lost rank; 2 for a mistake on this line.\n";

// The command line, checked.
struct Request {
  DdpBenchPlan plan;
  int num_ranks = 4;
};

void add_flags(CLI::App& app, Request& request) {
  DdpBenchPlan& plan = request.plan;
  show_defaults(app);
  app.add_option("--model", plan.model, "What to train")->check(CLI::IsMember(kModels));
  app.add_option("--ranks", request.num_ranks, "Ranks in all")->check(CLI::Range(1, kMaxRanks));
  app.add_option("--peer", plan.peer, "Whom to measure beside us")->check(CLI::IsMember(kPeers));
  app.add_option("--steps", plan.steps, "Timed steps of each variant, all repeats together")
      ->check(CLI::Range(1, kMaxSteps));
  app.add_option("--repeats", plan.repeats, "How often to measure; the median of medians counts")
      ->check(CLI::Range(1, kMaxSteps));
  add_json_flag(app, plan.json);
  app.footer(kExamples);
}

// Returns nothing if the line was --help, which is then printed.
std::optional<Request> parse_request(const Arguments& arguments) {
  Request request;
  CLI::App app(kDescription, "lockstep bench ddp");
  add_flags(app, request);
  if (!parse_only_flags(app, arguments)) {
    return std::nullopt;
  }
  DdpBenchPlan& plan = request.plan;
  if (plan.steps < plan.repeats) {
    throw UsageError("--steps {} cannot be dealt to --repeats {}; give at least one step to each",
                     plan.steps, plan.repeats);
  }
  plan.bars = ::isatty(STDOUT_FILENO) == 1;
  return request;
}

}  // namespace

int bench_ddp(const Arguments& arguments) {
  const auto request = parse_request(arguments);
  if (!request) {
    return 0;
  }
  return launch::run_job(
      {.name = "lockstep bench",
       .procs_per_node = request->num_ranks,
       .output = {.prefix = false},
       .command = {find_sibling("lockstep-bench"), "bench", "ddp", plan_text(request->plan)}});
}

}  // namespace lockstep::app

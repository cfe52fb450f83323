#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include <lockstep/base/error.h>

#include "bench/flags.h"
#include "bench/gpu/parity_plan.h"
#include "command_line.h"
#include "commands.h"
#include "launch/launch.h"
#include "sibling_program.h"

namespace lockstep::app {
namespace {

constexpr int kMaxSteps = 1'000'000;

const Names kModels = {"mlp", "convnet", "mytransformer", "bert"};
const Names kDevices = {"cuda", "cpu"};

constexpr const char* kDescription =
    "Trains small models on a GPU, by one rank and by several that share it, and on the CPU, and "
    "says how far the losses are apart and whether bits are the same that must be.";

constexpr const char* kExamples =
    "Examples:\n"
    "  lockstep bench gpu-parity --ranks 1,2,4 --json\n"
    "  lockstep bench gpu-parity --models bert --ranks 1,2 --steps 20\n"
    "  lockstep bench gpu-parity --device cpu --steps 10      on a machine without a GPU\n"
    "  lockstep bench gpu-parity --ranks 1 --dump parity      and what bench/gpu_parity.py reads\n"
    "\n"
    "float32 without TF32, no dropout, SGD at 0.01, deterministic kernels. The batches do not\n"
    "depend on the number of ranks. Shards: 8, which must have the same bits on every number of\n"
    "ranks. Exit code: 0; 1 if bits differ; 2 for a mistake on this line.\n";

void add_flags(CLI::App& app, ParityPlan& plan) {
  show_defaults(app);
  app.add_option("--models", plan.models, "What to train")
      ->delimiter(',')
      ->type_name("LIST")
      ->check(CLI::IsMember(kModels));
  app.add_option("--ranks", plan.ranks, "Numbers of ranks, each compared with the first")
      ->delimiter(',')
      ->type_name("LIST")
      ->check(CLI::IsMember(std::vector<int>{1, 2, 4, kParityShards}));
  app.add_option("--steps", plan.steps, "Steps of each run")->check(CLI::Range(1, kMaxSteps));
  app.add_option("--device", plan.device, "Where to train")->check(CLI::IsMember(kDevices));
  app.add_option("--dump", plan.dump,
                 "Write each model's first parameters, batches and losses to MODEL.safetensors in "
                 "this folder, which is made")
      ->type_name("FOLDER");
  add_json_flag(app, plan.json);
  app.footer(kExamples);
}

// Returns nothing if the line was --help, which is then printed.
std::optional<ParityPlan> parse_plan(const Arguments& arguments) {
  ParityPlan plan;
  CLI::App app(kDescription, "lockstep bench gpu-parity");
  add_flags(app, plan);
  if (!parse_only_flags(app, arguments)) {
    return std::nullopt;
  }
  return plan;
}

// Before anything is trained: a folder that cannot be had is a mistake on this line.
void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw UsageError("--dump {}: the folder cannot be made: {}", folder, error.message());
  }
}

}  // namespace

int bench_gpu_parity(const Arguments& arguments) {
  const auto plan = parse_plan(arguments);
  if (!plan) {
    return 0;
  }
  if (!plan->dump.empty()) {
    make_folder(plan->dump);
  }
  setenv("LOCKSTEP_SHARE_GPU", "1", 1);  // one GPU proves as much as several
  return launch::run_job(
      {.name = "lockstep bench",
       .procs_per_node = *std::max_element(plan->ranks.begin(), plan->ranks.end()),
       .output = {.prefix = false},
       .command = {find_sibling("lockstep-bench"), "bench", "gpu-parity", plan_text(*plan)}});
}

}  // namespace lockstep::app

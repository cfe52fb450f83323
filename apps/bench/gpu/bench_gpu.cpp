#include <optional>

#include <lockstep/base/error.h>

#include "bench/flags.h"
#include "bench/gpu/kernels_plan.h"
#include "command_line.h"
#include "commands.h"
#include "launch/launch.h"
#include "sibling_program.h"

namespace lockstep::app {
namespace {

constexpr int kMaxKernelRepeats = 1000;
constexpr int64_t kMaxTokens = 1 << 20;

constexpr const char* kGpuDescription =
    "Measures lockstep's kernels for a training step on one GPU: how long each takes at the sizes "
    "of GPT-2 (batch norm: of ResNet-50), how much of a copy's bandwidth that is, and how far it "
    "is from its twin on the CPU.";

constexpr const char* kGpuExamples =
    "Examples:\n"
    "  lockstep bench gpu --kernels --json\n"
    "  lockstep bench gpu --kernels --only adamw,cross_entropy\n"
    "  lockstep bench gpu --kernels --tokens 4096 --repeats 3\n"
    "  lockstep bench gpu --kernels --device cpu --tokens 64   the twins, on a machine without "
    "a GPU\n"
    "\n"
    "bytes: what must be read and written. share_of_copy: bytes per second, divided by what a "
    "copy\n"
    "of 1 GiB (cpu: 16 MiB) moves in the same run. Norms and GELU walk over several sets of "
    "tensors,\n"
    "so that none is found in the cache; what is small, for a few tokens, may be. max_error: to "
    "the twin, on small tensors, divided by the larger of 1\n"
    "and the value. Exit code: 0; 2 for a mistake on this line.\n";

// Returns nothing if the line was --help, which is then printed.
std::optional<KernelsPlan> parse_kernels_plan(const Arguments& arguments) {
  KernelsPlan plan;
  bool kernels = false;
  CLI::App app(kGpuDescription, "lockstep bench gpu");
  show_defaults(app);
  app.add_flag("--kernels", kernels, "Measure each kernel by itself");
  app.add_option("--only", plan.names, "Kernels to measure; all without it")
      ->delimiter(',')
      ->type_name("LIST");
  app.add_option("--tokens", plan.tokens, "Rows: the batch times the length of a sequence")
      ->check(CLI::Range(int64_t{1}, kMaxTokens));
  app.add_option("--repeats", plan.repeats, "How often to measure; the median counts")
      ->check(CLI::Range(1, kMaxKernelRepeats));
  app.add_option("--device", plan.device, "cpu: the twins, to try this without a GPU")
      ->check(CLI::IsMember(Names{"cuda", "cpu"}));
  add_json_flag(app, plan.json);
  app.footer(kGpuExamples);
  if (!parse_only_flags(app, arguments)) {
    return std::nullopt;
  }
  if (!kernels) {
    throw UsageError("say what to measure: lockstep bench gpu --kernels");
  }
  return plan;
}

}  // namespace

int bench_gpu(const Arguments& arguments) {
  const auto plan = parse_kernels_plan(arguments);
  if (!plan) {
    return 0;
  }
  return launch::run_job(
      {.name = "lockstep bench",
       .procs_per_node = 1,
       .output = {.prefix = false},
       .command = {find_sibling("lockstep-bench"), "bench", "gpu", plan_text(*plan)}});
}

}  // namespace lockstep::app

#include <filesystem>
#include <optional>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "bench/flags.h"
#include "bench/load/bench_load_plan.h"
#include "command_line.h"
#include "commands.h"
#include "launch/launch.h"
#include "load_peer.h"
#include "sibling_program.h"

namespace lockstep::app {

namespace {

constexpr int kMaxRanks = 64;
constexpr int kMaxRepeats = 1000;
constexpr int64_t kMinSizeBytes = 1'000'000;
constexpr int64_t kMaxSizeBytes = 64'000'000'000;

const Names kFormats = {"torch", "safetensors"};
const Names kPeers = {"torch", "none"};

constexpr const char* kDescription =
    "Loads a file of GPT-2's shapes in fp16 into the parameters of every rank: cold (nothing of "
    "the file in the page cache) and warm, in every mode, beside one sequential read and beside "
    "torch.load + load_state_dict in Python on every rank.";

constexpr const char* kExamples =
    "Examples:\n"
    "  lockstep bench load --size 1.5GB --ranks 4 --peer torch --json\n"
    "  lockstep bench load --size 500MB --ranks 2 --format safetensors --peer none\n"
    "  lockstep bench load --peer-python .venv/bin/python --folder /mnt/lustre/scratch\n"
    "\n"
    "The file is made first and removed at the end. Times are of the slowest rank, medians of\n"
    "--repeats, all variants in turn. SIZE is as in dd: 64M is 64 * 2^20 bytes, 64MB is 64 * "
    "10^6.\n"
    "How it is measured: docs/concepts/bench.md.\n"
    "Exit code: 0; 1 for wrong weights or a lost rank; 2 for a mistake on this line.\n";

// The command line, checked.
struct Request {
  LoadBenchPlan plan;
  int num_ranks = 4;
};

void add_flags(CLI::App& app, Request& request) {
  LoadBenchPlan& plan = request.plan;
  show_defaults(app);
  app.add_option("--size", plan.size_bytes, "Least size of the file, as 64MB or 1.5GB")
      ->type_name("SIZE")
      ->transform(size_in(kMinSizeBytes, kMaxSizeBytes));
  app.add_option("--ranks", request.num_ranks, "Ranks in all")->check(CLI::Range(1, kMaxRanks));
  app.add_option("--format", plan.format, "Of the file; torch: a zip as torch.save writes it")
      ->check(CLI::IsMember(kFormats));
  app.add_option("--peer", plan.peer, "Whom to measure beside us")->check(CLI::IsMember(kPeers));
  app.add_option("--peer-python", plan.python,
                 "The Python that has torch; one without it is left out")
      ->type_name("PATH");
  app.add_option("--folder", plan.folder, "Where to make the file")->type_name("DIR");
  app.add_option("--repeats", plan.repeats, "How often to measure; the median counts")
      ->check(CLI::Range(1, kMaxRepeats));
  app.add_flag("--fresh-memory", plan.fresh_memory,
               "Load into parameters that were never written to, here and at the peer: the kernel "
               "hands out their zeroed pages during the load. Without it they are initialised "
               "first, as a model's are when weights are loaded into it");
  add_json_flag(app, plan.json);
  app.footer(kExamples);
}

// Returns nothing if the line was --help, which is then printed.
std::optional<Request> parse_request(const Arguments& arguments) {
  Request request;
  LoadBenchPlan& plan = request.plan;
  plan.folder = std::filesystem::temp_directory_path().string();
  plan.peer_script = kLoadPeerScript;
  plan.bars = ::isatty(STDOUT_FILENO) == 1;
  CLI::App app(kDescription, "lockstep bench load");
  add_flags(app, request);
  if (!parse_only_flags(app, arguments)) {
    return std::nullopt;
  }
  if (plan.has_peer() && plan.format != "torch") {
    throw UsageError(
        "--peer torch reads what torch.save wrote; give --format torch or --peer none");
  }
  return request;
}

}  // namespace

int bench_load(const Arguments& arguments) {
  const auto request = parse_request(arguments);
  if (!request) {
    return 0;
  }
  return launch::run_job(
      {.name = "lockstep bench",
       .procs_per_node = request->num_ranks,
       .output = {.prefix = false},
       .command = {find_sibling("lockstep-bench"), "bench", "load", plan_text(request->plan)}});
}

}  // namespace lockstep::app

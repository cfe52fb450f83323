#include <filesystem>

#include "bench/data/bench_data_plan.h"
#include "bench/flags.h"
#include "command_line.h"
#include "commands.h"
#include "data_peer.h"
#include "sibling_program.h"

namespace lockstep::app {

namespace {

constexpr int64_t kMaxPictures = 100'000;
constexpr int64_t kMaxTokenMegabytes = 64'000;
constexpr int64_t kMaxBatch = 4096;
constexpr int kMaxWorkers = 256;
constexpr int kMaxRepeats = 1000;

const Names kPeers = {"torchvision", "none"};

constexpr const char* kDescription =
    "Measures how fast samples come out of the loader: JPEG pictures of 500 x 375 pixels, cropped "
    "at random, resized to 224 x 224, mirrored and normalised, beside Python's DataLoader with "
    "torchvision's transforms; and a token file, as int64 sequences of 1024.";

constexpr const char* kExamples =
    "Examples:\n"
    "  lockstep bench data --peer-python .venv/bin/python --json\n"
    "  lockstep bench data --workers 8 --pictures 4096 --peer none\n"
    "\n"
    "The files are made first and removed at the end. Medians of --repeats, all variants in turn.\n"
    "How it is measured: docs/concepts/bench.md. Exit code: 0; 1 if pixels\n"
    "differ from the peer's; 2 for a mistake on this line.\n";

void add_flags(CLI::App& app, DataBenchPlan& plan) {
  show_defaults(app);
  app.add_option("--pictures", plan.num_pictures, "How many pictures to read")
      ->check(CLI::Range(int64_t{1}, kMaxPictures));
  app.add_option("--token-megabytes", plan.token_megabytes, "Size of the token file, in 10^6 bytes")
      ->check(CLI::Range(int64_t{1}, kMaxTokenMegabytes));
  app.add_option("--workers", plan.num_workers, "Threads here, processes there")
      ->check(CLI::Range(0, kMaxWorkers));
  app.add_option("--batch", plan.batch_size, "Samples of a batch")
      ->check(CLI::Range(int64_t{1}, kMaxBatch));
  app.add_option("--repeats", plan.repeats, "How often to measure; the median counts")
      ->check(CLI::Range(1, kMaxRepeats));
  app.add_option("--peer", plan.peer, "Whom to measure beside us")->check(CLI::IsMember(kPeers));
  app.add_option("--peer-python", plan.python,
                 "The Python that has torchvision; one without it is left out")
      ->type_name("PATH");
  app.add_option("--folder", plan.folder, "Where to make the files")->type_name("DIR");
  add_json_flag(app, plan.json);
  app.footer(kExamples);
}

}  // namespace

int bench_data(const Arguments& arguments) {
  DataBenchPlan plan{.peer_script = kDataPeerScript,
                     .folder = std::filesystem::temp_directory_path().string()};
  CLI::App app(kDescription, "lockstep bench data");
  add_flags(app, plan);
  if (!parse_only_flags(app, arguments)) {
    return 0;
  }
  return exec_sibling("lockstep-bench", "bench", {"data", plan_text(plan)});
}

}  // namespace lockstep::app

#include <cmath>
#include <filesystem>
#include <optional>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "command_line.h"
#include "commands.h"
#include "launch/launch.h"
#include "load_peer.h"
#include "torch_program.h"

namespace lockstep::app {

namespace {

constexpr int kMaxRanks = 64;
constexpr int kMaxRepeats = 1000;

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
    "--repeats, all variants in turn. How it is measured: docs/concepts/bench.md.\n"
    "Exit code: 0; 1 for wrong weights or a lost rank; 2 for a mistake on this line.\n";

// The command line, checked.
struct Request {
  double size_bytes = 0;
  int num_ranks = 0;
  int repeats = 0;
  std::string format = "torch";
  std::string peer = "torch";
  std::string python = "python3";
  std::string folder;
  bool fresh_memory = false;
  bool json = false;
};

struct Texts {
  std::string size = "1.5GB", ranks = "4", repeats = "5";
};

void add_flags(CLI::App& app, Request& request, Texts& texts) {
  app.add_option("--size", texts.size, "Least size of the file, as 64MB or 1.5GB (1.5GB)")
      ->type_name("SIZE");
  app.add_option("--ranks", texts.ranks, "Ranks in all (4)")->type_name("N");
  app.add_option("--format", request.format, "Of the file (torch: a zip as of torch.save)")
      ->type_name("torch|safetensors");
  app.add_option("--peer", request.peer, "Whom to measure beside us (torch)")
      ->type_name("torch|none");
  app.add_option("--peer-python", request.python,
                 "The Python that has torch (python3); one without it is left out")
      ->type_name("PATH");
  app.add_option("--folder", request.folder,
                 "Where to make the file (the folder for temporary "
                 "files)")
      ->type_name("DIR");
  app.add_option("--repeats", texts.repeats, "The median of so many counts (5)")->type_name("R");
  app.add_flag("--fresh-memory", request.fresh_memory,
               "Load into parameters that were never written to, here and at the peer: the kernel "
               "hands out their zeroed pages during the load. Without it they are initialised "
               "first, as a model's are when weights are loaded into it");
  app.add_flag("--json", request.json,
               "Print one JSON object, raw times included, and nothing else");
  app.footer(kExamples);
}

// Nothing if it was --help.
std::optional<Request> parse_request(const Arguments& arguments) {
  Request request;
  Texts texts;
  CLI::App app(kDescription, "lockstep bench load");
  add_flags(app, request, texts);
  if (!parse_only_flags(app, arguments)) {
    return std::nullopt;
  }
  check_one_of("--format", request.format, kFormats);
  check_one_of("--peer", request.peer, kPeers);
  request.size_bytes = size_in_bytes("--size", texts.size);
  request.num_ranks = static_cast<int>(whole_number("--ranks", texts.ranks, 1, kMaxRanks));
  request.repeats = static_cast<int>(whole_number("--repeats", texts.repeats, 1, kMaxRepeats));
  if (request.peer == "torch" && request.format != "torch") {
    throw UsageError(
        "--peer torch reads what torch.save wrote; give --format torch or --peer none");
  }
  if (request.folder.empty()) {
    request.folder = std::filesystem::temp_directory_path().string();
  }
  return request;
}

}  // namespace

int bench_load(const Arguments& arguments) {
  const auto request = parse_request(arguments);
  if (!request) {
    return 0;
  }
  const nlohmann::json plan{{"size_bytes", std::llround(request->size_bytes)},
                            {"format", request->format},
                            {"peer", request->peer},
                            {"python", request->python},
                            {"peer_script", kLoadPeerScript},
                            {"folder", request->folder},
                            {"repeats", request->repeats},
                            {"fresh_memory", request->fresh_memory},
                            {"json", request->json},
                            {"bars", ::isatty(STDOUT_FILENO) == 1}};
  return launch::run_job({.name = "lockstep bench",
                          .procs_per_node = request->num_ranks,
                          .output = {.prefix = false},
                          .command = {find_torch_program(), "bench", "load", plan.dump()}});
}

}  // namespace lockstep::app

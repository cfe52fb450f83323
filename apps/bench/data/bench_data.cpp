#include <filesystem>
#include <optional>

#include <nlohmann/json.hpp>

#include "command_line.h"
#include "commands.h"
#include "data_peer.h"
#include "torch_program.h"

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
    "How it is measured: docs/concepts/bench.md. Exit code: 0; 2 for a mistake on this line.\n";

struct Request {
  std::string pictures = "512", token_megabytes = "256", workers = "2", batch = "32", repeats = "5";
  std::string peer = "torchvision", python = "python3", folder;
  bool json = false;
};

void add_flags(CLI::App& app, Request& request) {
  app.add_option("--pictures", request.pictures, "How many (512)")->type_name("N");
  app.add_option("--token-megabytes", request.token_megabytes,
                 "Size of the token file, in 10^6 bytes (256)")
      ->type_name("N");
  app.add_option("--workers", request.workers, "Threads here, processes there (2)")->type_name("N");
  app.add_option("--batch", request.batch, "Samples of a batch (32)")->type_name("B");
  app.add_option("--repeats", request.repeats, "The median of so many counts (5)")->type_name("R");
  app.add_option("--peer", request.peer, "Whom to measure beside us (torchvision)")
      ->type_name("torchvision|none");
  app.add_option("--peer-python", request.python,
                 "The Python that has torchvision (python3); one without it is left out")
      ->type_name("PATH");
  app.add_option("--folder", request.folder,
                 "Where to make the files (the folder for temporary files)")
      ->type_name("DIR");
  app.add_flag("--json", request.json,
               "Print one JSON object, raw times included, and nothing else");
  app.footer(kExamples);
}

// Nothing if it was --help.
std::optional<Request> parse_request(const Arguments& arguments) {
  Request request;
  CLI::App app(kDescription, "lockstep bench data");
  add_flags(app, request);
  if (!parse_only_flags(app, arguments)) {
    return std::nullopt;
  }
  check_one_of("--peer", request.peer, kPeers);
  if (request.folder.empty()) {
    request.folder = std::filesystem::temp_directory_path().string();
  }
  return request;
}

}  // namespace

int bench_data(const Arguments& arguments) {
  const auto request = parse_request(arguments);
  if (!request) {
    return 0;
  }
  const nlohmann::json plan{
      {"num_pictures", whole_number("--pictures", request->pictures, 1, kMaxPictures)},
      {"token_megabytes",
       whole_number("--token-megabytes", request->token_megabytes, 1, kMaxTokenMegabytes)},
      {"num_workers", whole_number("--workers", request->workers, 0, kMaxWorkers)},
      {"batch_size", whole_number("--batch", request->batch, 1, kMaxBatch)},
      {"repeats", whole_number("--repeats", request->repeats, 1, kMaxRepeats)},
      {"python", request->peer == "none" ? "" : request->python},
      {"peer_script", kDataPeerScript},
      {"folder", request->folder},
      {"json", request->json}};
  return exec_torch_program("bench", {"data", plan.dump()});
}

}  // namespace lockstep::app

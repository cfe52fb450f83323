#include "bench/launch/bench_launch.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "command_line.h"
#include "commands.h"
#include "image/tools.h"
#include "torch_program.h"

namespace lockstep::app {

namespace {

using nlohmann::json;
using Times = std::vector<double>;

constexpr int kMaxRanks = 64;
constexpr int kMaxRepeats = 1000;

const Names kPeers = {"torchrun", "none"};

constexpr const char* kDescription =
    "Measures a short DDP job from command to exit: in C++ under `lockstep run`, in Python under "
    "torchrun, and the C++ program under torchrun. Then how fast ranks start, stop and restart.";

constexpr const char* kExamples =
    "Examples:\n"
    "  lockstep bench launch --ranks 8 --peer torchrun --json\n"
    "  lockstep bench launch --ranks 8 --torchrun .venv/bin/torchrun --repeats 3\n"
    "  lockstep bench launch --ranks 8 --peer none\n"
    "\n"
    "Medians of --repeats rounds, after one that warms up. A torchrun that is not there is left\n"
    "out, its figures are null. How it is measured: docs/concepts/bench.md. Exit code: 0; 1 for a\n"
    "job that fails or computes something else; 2 for a mistake on this line.\n";

struct Request {
  LaunchBench bench;
  bool json = false;
};

struct Texts {
  std::string ranks = "8", repeats = "5", peer = "torchrun", torchrun;
};

// Where the peer is; empty if it is not wanted or not there, which is then said.
std::string find_peer(const Texts& texts) {
  if (texts.peer == "none") {
    return "";
  }
  if (!texts.torchrun.empty()) {
    if (::access(texts.torchrun.c_str(), X_OK) != 0) {
      throw UsageError("--torchrun {} is no program; give its path, or --peer none",
                       texts.torchrun);
    }
    return texts.torchrun;
  }
  const std::string path = image::find_tool("torchrun");
  if (path.empty()) {
    fmt::print(stderr,
               "lockstep bench: there is no torchrun in PATH, its figures are left out; it comes "
               "with PyTorch (pip install torch==2.11.0), --torchrun gives its path\n");
  }
  return path;
}

// Nothing if it was --help.
std::optional<Request> parse_request(const Arguments& arguments) {
  Request request;
  Texts texts;
  CLI::App app(kDescription, "lockstep bench launch");
  app.add_option("--ranks", texts.ranks, "Ranks of each job (8)")->type_name("N");
  app.add_option("--repeats", texts.repeats, "Rounds, of which the median counts (5)")
      ->type_name("R");
  app.add_option("--peer", texts.peer, "Whom to measure beside us (torchrun)")
      ->type_name("torchrun|none");
  app.add_option("--torchrun", texts.torchrun, "Where it is, if not in PATH")->type_name("PATH");
  app.add_flag("--json", request.json,
               "Print one JSON object, raw times included, and nothing else");
  app.footer(kExamples);
  if (!parse_only_flags(app, arguments)) {
    return std::nullopt;
  }
  check_one_of("--peer", texts.peer, kPeers);
  request.bench.num_ranks = static_cast<int>(whole_number("--ranks", texts.ranks, 2, kMaxRanks));
  request.bench.repeats =
      static_cast<int>(whole_number("--repeats", texts.repeats, 1, kMaxRepeats));
  find_torch_program();  // said before a missing torchrun, which is no mistake
  request.bench.torchrun = find_peer(texts);
  return request;
}

std::optional<double> median(Times times) {
  if (times.empty()) {
    return std::nullopt;
  }
  std::sort(times.begin(), times.end());
  const size_t half = times.size() / 2;
  return times.size() % 2 == 1 ? times[half] : (times[half - 1] + times[half]) / 2;
}

json figure(const std::optional<double>& value) {
  return value ? json(*value) : json(nullptr);
}

std::optional<double> ratio(const Times& peer, const Times& ours) {
  return peer.empty() ? std::nullopt : std::optional(*median(peer) / *median(ours));
}

std::string to_json(const LaunchBench& bench, const LaunchFigures& figures) {
  const json answer{
      {"ranks", bench.num_ranks},
      {"repeats", bench.repeats},
      {"peer", bench.torchrun.empty() ? json(nullptr) : json("torchrun")},
      {"lockstep_s", figure(median(figures.lockstep_s))},
      {"peer_s", figure(median(figures.peer_s))},
      {"peer_same_binary_s", figure(median(figures.peer_same_binary_s))},
      {"speedup", figure(ratio(figures.peer_s, figures.lockstep_s))},
      {"speedup_same_binary", figure(ratio(figures.peer_same_binary_s, figures.lockstep_s))},
      {"print_only_ms", figure(median(figures.print_only_ms))},
      {"death_to_stop_ms", figure(median(figures.death_to_stop_ms))},
      {"restart_ms", figure(median(figures.restart_ms))},
      {"raw_s",
       {{"lockstep", figures.lockstep_s},
        {"peer", figures.peer_s},
        {"peer_same_binary", figures.peer_same_binary_s}}},
      {"raw_ms",
       {{"print_only", figures.print_only_ms},
        {"death_to_stop", figures.death_to_stop_ms},
        {"restart", figures.restart_ms}}}};
  return answer.dump() + "\n";
}

std::string to_table(const LaunchBench& bench, const LaunchFigures& figures) {
  std::string text = fmt::format("{} ranks, medians of {}\n\na job of 26 steps, command to exit\n",
                                 bench.num_ranks, bench.repeats);
  text += fmt::format("  {:<32} {:>8.2f} s\n", "C++, lockstep run", *median(figures.lockstep_s));
  const auto peer_row = [&](const char* name, const Times& times) {
    if (!times.empty()) {
      text += fmt::format("  {:<32} {:>8.2f} s  {:.1f} times ours\n", name, *median(times),
                          *ratio(times, figures.lockstep_s));
    }
  };
  peer_row("Python, torchrun", figures.peer_s);
  peer_row("C++, torchrun --no-python", figures.peer_same_binary_s);
  text += "\nlockstep run\n";
  const auto row = [&](const char* name, const Times& times) {
    text += fmt::format("  {:<32} {:>8.1f} ms\n", name, *median(times));
  };
  row("ranks that only print", figures.print_only_ms);
  row("a death to the last stop signal", figures.death_to_stop_ms);
  row("a death to the last new rank", figures.restart_ms);
  return text;
}

}  // namespace

int bench_launch(const Arguments& arguments) {
  if (arguments == Arguments{"fault-rank"}) {
    return launch_fault_rank();
  }
  const auto request = parse_request(arguments);
  if (!request) {
    return 0;
  }
  const LaunchFigures figures = measure_launch(request->bench);
  fmt::print("{}",
             request->json ? to_json(request->bench, figures) : to_table(request->bench, figures));
  return 0;
}

}  // namespace lockstep::app

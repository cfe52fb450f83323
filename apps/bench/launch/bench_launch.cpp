#include "bench/launch/bench_launch.h"

#include <cstdio>
#include <optional>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "bench/figures.h"
#include "bench/flags.h"
#include "command_line.h"
#include "commands.h"
#include "image/tools.h"
#include "sibling_program.h"

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
  std::string peer = "torchrun";
  bool json = false;
};

// Returns where the peer is; nothing if it is not wanted, or not there, which is then said.
std::string find_peer(const Request& request) {
  const std::string& torchrun = request.bench.torchrun;
  if (request.peer == "none") {
    return "";
  }
  if (!torchrun.empty()) {
    if (::access(torchrun.c_str(), X_OK) != 0) {
      throw UsageError("--torchrun {} is no program; give its path, or --peer none", torchrun);
    }
    return torchrun;
  }
  const std::string path = image::find_tool("torchrun");
  if (path.empty()) {
    fmt::print(stderr,
               "lockstep bench: there is no torchrun in PATH, its figures are left out; it comes "
               "with PyTorch (pip install torch==2.11.0), --torchrun gives its path\n");
  }
  return path;
}

// Returns nothing if the line was --help, which is then printed.
std::optional<Request> parse_request(const Arguments& arguments) {
  Request request;
  CLI::App app(kDescription, "lockstep bench launch");
  show_defaults(app);
  app.add_option("--ranks", request.bench.num_ranks, "Ranks of each job")
      ->check(CLI::Range(2, kMaxRanks));
  app.add_option("--repeats", request.bench.repeats, "How often to measure; the median counts")
      ->check(CLI::Range(1, kMaxRepeats));
  app.add_option("--peer", request.peer, "Whom to measure beside us")->check(CLI::IsMember(kPeers));
  app.add_option("--torchrun", request.bench.torchrun, "Where it is, if not in PATH")
      ->type_name("PATH");
  add_json_flag(app, request.json);
  app.footer(kExamples);
  if (!parse_only_flags(app, arguments)) {
    return std::nullopt;
  }
  find_sibling("lockstep-bench");  // said before a missing torchrun, which is no mistake
  request.bench.torchrun = find_peer(request);
  return request;
}

json figure(const Times& times) {
  return times.empty() ? json(nullptr) : json(median(times));
}

json ratio_json(const Times& peer, const Times& ours) {
  return peer.empty() ? json(nullptr) : json(median(peer) / median(ours));
}

std::string to_json(const LaunchBench& bench, const LaunchFigures& figures) {
  const json answer{
      {"ranks", bench.num_ranks},
      {"repeats", bench.repeats},
      {"peer", bench.torchrun.empty() ? json(nullptr) : json("torchrun")},
      {"lockstep_s", figure(figures.lockstep_s)},
      {"peer_s", figure(figures.peer_s)},
      {"peer_same_binary_s", figure(figures.peer_same_binary_s)},
      {"speedup", ratio_json(figures.peer_s, figures.lockstep_s)},
      {"speedup_same_binary", ratio_json(figures.peer_same_binary_s, figures.lockstep_s)},
      {"print_only_ms", figure(figures.print_only_ms)},
      {"death_to_stop_ms", figure(figures.death_to_stop_ms)},
      {"restart_ms", figure(figures.restart_ms)},
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
  text += fmt::format("  {:<32} {:>8.2f} s\n", "C++, lockstep run", median(figures.lockstep_s));
  const auto peer_row = [&](const char* name, const Times& times) {
    if (!times.empty()) {
      text += fmt::format("  {:<32} {:>8.2f} s  {:.1f} times ours\n", name, median(times),
                          median(times) / median(figures.lockstep_s));
    }
  };
  peer_row("Python, torchrun", figures.peer_s);
  peer_row("C++, torchrun --no-python", figures.peer_same_binary_s);
  text += "\nlockstep run\n";
  const auto row = [&](const char* name, const Times& times) {
    text += fmt::format("  {:<32} {:>8.1f} ms\n", name, median(times));
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

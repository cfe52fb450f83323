#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/process/process.h"
#include "bench/launch/bench_launch.h"
#include "ddp_job.h"
#include "memory_file.h"
#include "sibling_program.h"

namespace lockstep::app {

namespace {

using Losses = std::vector<double>;

constexpr auto kPatience = std::chrono::minutes(6);  // the jobs give up after 5
constexpr double kTolerance = 1e-3;                  // sums of another order, after 26 steps

struct Timed {
  double seconds = 0;
  std::string out;
};

// Times a program from its command until it has ended and nobody holds its output any more.
Timed timed(std::vector<std::string> argv) {
  const std::string name = fmt::format("{}", fmt::join(argv, " "));
  const auto begin = base::Clock::now();
  const base::Output output =
      base::run_process({.argv = std::move(argv), .env = {{"OMP_NUM_THREADS", "1"}}},
                        base::Deadline::after(kPatience));
  const std::chrono::duration<double> duration = base::Clock::now() - begin;
  if (!output.status.ok()) {
    throw IoError("bench launch: `{}`: {}{}; its last words:\n{}", name,
                  output.timed_out ? "too slow, " : "", output.status.text(), output.err);
  }
  return {.seconds = duration.count(), .out = output.out};
}

// Returns what follows "rank R: " on the line of each rank.
std::vector<std::string> answers(const std::string& out, int num_ranks) {
  std::vector<std::string> found;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::string begin = fmt::format("rank {}: ", rank);
    const size_t at = out.find(begin);
    if (at == std::string::npos) {
      throw IoError("bench launch: rank {} of {} printed no result, only:\n{}", rank, num_ranks,
                    out);
    }
    const size_t from = at + begin.size();
    found.push_back(out.substr(from, out.find('\n', from) - from));
  }
  return found;
}

Losses losses(const std::string& out, int num_ranks) {
  const std::string begin = "26 steps, loss ";
  Losses found;
  for (const std::string& answer : answers(out, num_ranks)) {
    char* end = nullptr;
    const bool has_begin = answer.starts_with(begin);
    found.push_back(has_begin ? std::strtod(answer.c_str() + begin.size(), &end) : 0);
    if (!has_begin || *end != '\0') {
      throw IoError("bench launch: a rank printed \"{}\", not \"{}...\"", answer, begin);
    }
  }
  return found;
}

void check_same(const Losses& ours, const Losses& peers) {
  for (size_t rank = 0; rank < ours.size(); ++rank) {
    if (!(std::abs(ours[rank] - peers[rank]) <= kTolerance * ours[rank])) {
      throw IoError("bench launch: rank {} ends with loss {} here and {} under the peer", rank,
                    ours[rank], peers[rank]);
    }
  }
}

// A round adds a figure to every list.
class Rounds {
 public:
  explicit Rounds(const LaunchBench& bench) : bench_(bench) {}

  void measure(LaunchFigures& figures) const {
    const Losses ours = job(with(ours_, {program_, "bench", "launch"}), figures.lockstep_s);
    if (!bench_.torchrun.empty()) {
      check_same(ours, job(with(peers_, {script_.path()}), figures.peer_s));
      check_same(ours, job(with(peers_, {"--no-python", program_, "bench", "launch"}),
                           figures.peer_same_binary_s));
    }
    const Timed print = timed(with(ours_, {"echo", "rank {rank}: here"}));
    for (const std::string& answer : answers(print.out, bench_.num_ranks)) {
      LOCKSTEP_CHECK(answer == "here", "echo printed \"{}\"", answer);
    }
    figures.print_only_ms.push_back(print.seconds * 1e3);
    const FaultTimes fault = measure_fault(bench_.num_ranks);
    figures.death_to_stop_ms.push_back(fault.death_to_stop_ms);
    figures.restart_ms.push_back(fault.restart_ms);
  }

 private:
  using Text = std::vector<std::string>;

  static Text with(Text begin, const Text& end) {
    begin.insert(begin.end(), end.begin(), end.end());
    return begin;
  }

  Losses job(const Text& argv, std::vector<double>& seconds) const {
    const Timed run = timed(argv);
    seconds.push_back(run.seconds);
    return losses(run.out, bench_.num_ranks);
  }

  const LaunchBench bench_;
  const std::string program_ = find_sibling("lockstep-bench");
  const MemoryFile script_{"ddp_job.py", kDdpJobScript};  // torchrun wants a path
  const Text ours_ = {base::own_program(), "run", "--nproc-per-node",
                      std::to_string(bench_.num_ranks)};
  // With --standalone it takes a free port; the default is one port for all jobs of the host.
  const Text peers_ = {bench_.torchrun, "--standalone", "--nproc-per-node",
                       std::to_string(bench_.num_ranks)};
};

}  // namespace

LaunchFigures measure_launch(const LaunchBench& bench) {
  const Rounds rounds(bench);
  LaunchFigures warm_up;
  rounds.measure(warm_up);
  LaunchFigures figures;
  for (int i = 0; i < bench.repeats; ++i) {
    rounds.measure(figures);
  }
  return figures;
}

}  // namespace lockstep::app

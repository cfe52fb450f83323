#include "bench/checkpoint/bench_checkpoint_result.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/figures.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiga = 1e9;

constexpr int kDigits = 4;

double rounded(double value) {
  return rounded_to(kDigits, value);
}

double disk_s(const CheckpointBenchResult& result) {
  const double buffered = median(result.disk_buffered_s);
  return result.disk_direct_s.empty() ? buffered : std::min(buffered, median(result.disk_direct_s));
}

const std::vector<double>& sync_s(const CheckpointBenchResult& result, SyncSave way) {
  static const std::vector<double> kNone;
  const auto found = result.sync_s.find(way);
  return found == result.sync_s.end() ? kNone : found->second;
}

// The fastest way to save while all wait: by rank 0 alone, or as a checkpoint of all ranks.
struct FastestSave {
  const char* name;
  const std::vector<double>& seconds;
};

FastestSave fastest_save(const CheckpointBenchResult& result) {
  const FastestSave ways[] = {{"library", sync_s(result, SyncSave::Library)},
                              {"buffered", sync_s(result, SyncSave::Buffered)},
                              {"direct", sync_s(result, SyncSave::Direct)},
                              {"checkpoint", result.save_s}};
  return *std::min_element(std::begin(ways), std::end(ways), [](const auto& a, const auto& b) {
    return !a.seconds.empty() && (b.seconds.empty() || median(a.seconds) < median(b.seconds));
  });
}

double gb_per_s(const CheckpointBenchResult& result, double seconds) {
  return seconds > 0 ? static_cast<double>(result.state_bytes) / kGiga / seconds : 0;
}

}  // namespace

std::string checkpoint_bench_json(const CheckpointBenchPlan& plan,
                                  const CheckpointBenchResult& result) {
  const double stall_s = median(result.stall_s);
  const FastestSave sync = fastest_save(result);
  const double sync_save_s = median(sync.seconds);
  const Json json{
      {"ranks", result.num_ranks},
      {"repeats", plan.repeats},
      {"state_bytes", result.state_bytes},
      {"bytes_written", result.bytes_written},
      {"stall_s", rounded(stall_s)},
      {"sync_save_s", rounded(sync_save_s)},
      {"sync_save", sync.name},
      {"stall_fraction", rounded(stall_s / sync_save_s)},
      {"write_gb_per_s", rounded(gb_per_s(result, median(result.save_s)))},
      {"disk_gb_per_s", rounded(gb_per_s(result, disk_s(result)))},
      {"training_write_gb_per_s", rounded(gb_per_s(result, median(result.training_save_s)))},
      {"calm_step_s", rounded(median(result.calm_step_s))},
      {"raw_s",
       {{"calm_step", raw_figures_json(kDigits, result.calm_step_s)},
        {"stall", raw_figures_json(kDigits, result.stall_s)},
        {"training_save", raw_figures_json(kDigits, result.training_save_s)},
        {"save", raw_figures_json(kDigits, result.save_s)},
        {"sync_save", raw_figures_json(kDigits, sync.seconds)},
        {"sync_library", raw_figures_json(kDigits, sync_s(result, SyncSave::Library))},
        {"sync_buffered", raw_figures_json(kDigits, sync_s(result, SyncSave::Buffered))},
        {"sync_direct", raw_figures_json(kDigits, sync_s(result, SyncSave::Direct))},
        {"disk_buffered", raw_figures_json(kDigits, result.disk_buffered_s)},
        {"disk_direct", raw_figures_json(kDigits, result.disk_direct_s)}}}};
  return json.dump() + "\n";
}

std::string checkpoint_bench_table(const CheckpointBenchPlan& plan,
                                   const CheckpointBenchResult& result) {
  const double stall_s = median(result.stall_s);
  const FastestSave sync = fastest_save(result);
  const double sync_save_s = median(sync.seconds);
  std::string text = fmt::format(
      "{:.0f} MB of state, {} rank{}, steps of {:.3f} s; medians of {}, {} saves each\n",
      static_cast<double>(result.state_bytes) / 1e6, result.num_ranks,
      result.num_ranks == 1 ? "" : "s", median(result.calm_step_s), plan.repeats, kSavesPerRepeat);
  const auto row = [&](const char* name, double seconds) {
    text +=
        fmt::format("{:>34} {:>8.3f} s {:>8.3f} GB/s\n", name, seconds, gb_per_s(result, seconds));
  };
  row("save while training goes on", median(result.training_save_s));
  row("save for which all wait", median(result.save_s));
  row("fastest synchronous save", sync_save_s);
  row("the disk, one write after another", disk_s(result));
  return text +
         fmt::format("stall of training {:.3f} s: {:.1f} % of the fastest synchronous save ({})\n",
                     stall_s, 100 * stall_s / sync_save_s, sync.name);
}

}  // namespace lockstep

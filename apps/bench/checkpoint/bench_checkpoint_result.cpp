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

double gb_per_s(const CheckpointBenchResult& result, double seconds) {
  return seconds > 0 ? static_cast<double>(result.state_bytes) / kGiga / seconds : 0;
}

}  // namespace

std::string checkpoint_bench_json(const CheckpointBenchPlan& plan,
                                  const CheckpointBenchResult& result) {
  const double stall_s = median(result.stall_s);
  const double sync_s = median(result.sync_save_s);
  const Json json{
      {"ranks", result.num_ranks},
      {"repeats", plan.repeats},
      {"state_bytes", result.state_bytes},
      {"bytes_written", result.bytes_written},
      {"stall_s", rounded(stall_s)},
      {"sync_save_s", rounded(sync_s)},
      {"stall_fraction", rounded(stall_s / sync_s)},
      {"write_gb_per_s", rounded(gb_per_s(result, median(result.save_s)))},
      {"disk_gb_per_s", rounded(gb_per_s(result, disk_s(result)))},
      {"training_write_gb_per_s", rounded(gb_per_s(result, median(result.training_save_s)))},
      {"calm_step_s", rounded(median(result.calm_step_s))},
      {"raw_s",
       {{"calm_step", raw_figures_json(kDigits, result.calm_step_s)},
        {"stall", raw_figures_json(kDigits, result.stall_s)},
        {"training_save", raw_figures_json(kDigits, result.training_save_s)},
        {"save", raw_figures_json(kDigits, result.save_s)},
        {"sync_save", raw_figures_json(kDigits, result.sync_save_s)},
        {"disk_buffered", raw_figures_json(kDigits, result.disk_buffered_s)},
        {"disk_direct", raw_figures_json(kDigits, result.disk_direct_s)}}}};
  return json.dump() + "\n";
}

std::string checkpoint_bench_table(const CheckpointBenchPlan& plan,
                                   const CheckpointBenchResult& result) {
  const double stall_s = median(result.stall_s);
  const double sync_s = median(result.sync_save_s);
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
  row("synchronous save by rank 0", sync_s);
  row("the disk, one write after another", disk_s(result));
  return text + fmt::format("stall of training {:.3f} s: {:.1f} % of a synchronous save\n", stall_s,
                            100 * stall_s / sync_s);
}

}  // namespace lockstep

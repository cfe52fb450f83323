#include "bench/load/bench_load_result.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/figures.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMaxCached = 0.01;  // more in the page cache, and a load was not cold

constexpr int kDigits = 4;

double rounded(double value) {
  return rounded_to(kDigits, value);
}

const LoadModeFigures& chosen(const LoadBenchResult& result) {
  return *std::find_if(
      result.modes.begin(), result.modes.end(),
      [&](const LoadModeFigures& figures) { return figures.mode == result.chosen; });
}

Json mode_json(const LoadModeFigures& figures) {
  return {{"mode", name_of(figures.mode)},
          {"cold_s", median_json(kDigits, figures.cold_s)},
          {"warm_s", median_json(kDigits, figures.warm_s)},
          {"warm_cpu_s", median_json(kDigits, figures.warm_cpu_s)},
          {"bytes_read", figures.bytes_read},
          {"storage_bytes_read", figures.storage_bytes_read},
          {"extra_peak_bytes_per_rank", figures.extra_peak_bytes_per_rank},
          {"raw_s",
           {{"cold", raw_figures_json(kDigits, figures.cold_s)},
            {"warm", raw_figures_json(kDigits, figures.warm_s)}}}};
}

// One process, one pass over the file: the faster of the two ways.
double sequential_best_s(const LoadBenchResult& result) {
  const double cached_s = median(result.sequential_cold_s);
  return result.sequential_direct_s.empty()
             ? cached_s
             : std::min(cached_s, median(result.sequential_direct_s));
}

std::string bar(const LoadBenchPlan& plan, double seconds, double longest) {
  return plan.bars && longest > 0 ? "  " + bench_bar(seconds / longest) : "";
}

}  // namespace

std::string load_bench_json(const LoadBenchPlan& plan, const LoadBenchResult& result) {
  const LoadModeFigures& best = chosen(result);
  const double warm_s = median(best.warm_s);
  const bool has_peer = !result.peer_warm_s.empty();
  Json modes = Json::array();
  for (const LoadModeFigures& figures : result.modes) {
    modes.push_back(mode_json(figures));
  }
  const Json json{
      {"ranks", result.num_ranks},
      {"backend", result.backend},
      {"format", plan.format},
      {"tensors", result.num_tensors},
      {"repeats", plan.repeats},
      {"fresh_memory", plan.fresh_memory},
      {"mode", name_of(result.chosen)},
      {"reason", result.reason},
      {"file_bytes", result.file_bytes},
      {"bytes_read", best.bytes_read},
      {"storage_bytes_read", best.storage_bytes_read},
      {"cold_s", median_json(kDigits, best.cold_s)},
      {"sequential_cold_s", rounded(median(result.sequential_cold_s))},
      {"warm_s", median_json(kDigits, best.warm_s)},
      {"warm_cpu_s", median_json(kDigits, best.warm_cpu_s)},
      {"peer", has_peer ? Json("torch") : Json(nullptr)},
      {"peer_warm_s", median_json(kDigits, result.peer_warm_s)},
      {"peer_warm_cpu_s", median_json(kDigits, result.peer_warm_cpu_s)},
      {"speedup", has_peer ? Json(rounded(median(result.peer_warm_s) / warm_s)) : Json(nullptr)},
      {"extra_peak_bytes_per_rank", best.extra_peak_bytes_per_rank},
      {"cached_fraction", rounded(result.cached_fraction)},
      {"is_cold", result.cached_fraction <= kMaxCached},
      {"modes", std::move(modes)},
      {"sequential_best_s", rounded(sequential_best_s(result))},
      {"sequential_direct_s", median_json(kDigits, result.sequential_direct_s)},
      {"raw_s",
       {{"sequential_cold", raw_figures_json(kDigits, result.sequential_cold_s)},
        {"sequential_direct", raw_figures_json(kDigits, result.sequential_direct_s)},
        {"peer_warm", raw_figures_json(kDigits, result.peer_warm_s)}}}};
  return json.dump() + "\n";
}

std::string load_bench_table(const LoadBenchPlan& plan, const LoadBenchResult& result) {
  constexpr double kMega = 1e6;
  constexpr double kMebi = 1 << 20;
  const double file_mb = static_cast<double>(result.file_bytes) / kMega;
  double longest = median(result.peer_warm_s);
  for (const LoadModeFigures& figures : result.modes) {
    longest = std::max({longest, median(figures.cold_s), median(figures.warm_s)});
  }
  std::string text = fmt::format(
      "{:.0f} MB of fp16 weights ({}) into {} parameters, {} rank{}, backend {}; seconds until the "
      "slowest rank has them\n",
      file_mb, plan.format, plan.fresh_memory ? "untouched" : "initialised", result.num_ranks,
      result.num_ranks == 1 ? "" : "s", result.backend);
  text += fmt::format("{:>12} {:>8} {:>8} {:>8} {:>12} {:>12}\n", "", "cold", "warm", "warm CPU",
                      "MB read", "extra MiB");
  for (const LoadModeFigures& figures : result.modes) {
    text += fmt::format("{:>12} {:>8.3f} {:>8.3f} {:>8.3f} {:>12.0f} {:>12.1f}{}\n",
                        name_of(figures.mode), median(figures.cold_s), median(figures.warm_s),
                        median(figures.warm_cpu_s), static_cast<double>(figures.bytes_read) / kMega,
                        static_cast<double>(figures.extra_peak_bytes_per_rank) / kMebi,
                        bar(plan, median(figures.warm_s), longest));
  }
  text += fmt::format("{:>12} {:>8.3f} {:>8} {:>8} {:>12.0f}\n", "sequential",
                      sequential_best_s(result), "-", "-", file_mb);
  if (!result.peer_warm_s.empty()) {
    text += fmt::format("{:>12} {:>8} {:>8.3f} {:>8.3f}{:>26}{}\n", "torch.load", "-",
                        median(result.peer_warm_s), median(result.peer_warm_cpu_s), "",
                        bar(plan, median(result.peer_warm_s), longest));
  }
  text += fmt::format("auto: {}, {}\n", name_of(result.chosen), result.reason);
  if (!result.peer_warm_s.empty()) {
    text += fmt::format("speedup {:.2f}x against torch.load, warm\n",
                        median(result.peer_warm_s) / median(chosen(result).warm_s));
  }
  if (result.cached_fraction > kMaxCached) {
    text += fmt::format("not cold: {:.0f} % of the file stayed in the page cache\n",
                        result.cached_fraction * 100);
  }
  return text;
}

}  // namespace lockstep

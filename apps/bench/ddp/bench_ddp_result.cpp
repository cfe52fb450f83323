#include "bench/ddp/bench_ddp_result.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/figures.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDigits = 4;

double rounded(double value) {
  return rounded_to(kDigits, value);
}

double ratio(double above, double below) {
  return below > 0 ? above / below : 0;
}

Json raw_json(const StepFigures& figures) {
  Json list = Json::array();
  for (const auto& repeat : figures) {
    for (const double value : repeat) {
      list.push_back(rounded(value));
    }
  }
  return list;
}

std::string row(const DdpBenchPlan& plan, const char* name, const StepFigures& figures,
                double bare_ms, double longest_ms) {
  const double ms = median_of(figures);
  std::string text = fmt::format("{:>9} {:>11.2f} {:>9.2f}x", name, ms, ratio(ms, bare_ms));
  if (plan.bars) {
    text += "  " + bench_bar(ratio(ms, longest_ms));
  }
  return text + "\n";
}

}  // namespace

double median_of(const StepFigures& figures) {
  std::vector<double> medians;
  for (const auto& repeat : figures) {
    medians.push_back(median(repeat));
  }
  return median(std::move(medians));
}

std::string ddp_bench_json(const DdpBenchPlan& plan, const DdpBenchResult& result) {
  const double bare_ms = median_of(result.bare_ms);
  const double lockstep_ms = median_of(result.lockstep_ms);
  const double peer_ms = median_of(result.peer_ms);
  const auto of_peer = [&](double value) {
    return plan.has_peer() ? Json(rounded(value)) : Json(nullptr);
  };
  Json raw{{"bare", raw_json(result.bare_ms)}, {"lockstep", raw_json(result.lockstep_ms)}};
  if (plan.has_peer()) {
    raw["peer"] = raw_json(result.peer_ms);
  }
  const Json json{
      {"model", plan.model},
      {"ranks", result.num_ranks},
      {"backend", result.backend},
      {"peer", plan.has_peer() ? Json("c10d") : Json(nullptr)},
      {"steps", plan.steps},
      {"repeats", plan.repeats},
      {"gradient_bytes", result.gradient_bytes},
      {"bare_ms", rounded(bare_ms)},
      {"lockstep_ms", rounded(lockstep_ms)},
      {"peer_ms", of_peer(peer_ms)},
      {"speedup", of_peer(ratio(peer_ms, lockstep_ms))},
      {"overhead", rounded(ratio(lockstep_ms, bare_ms))},
      {"peer_overhead", of_peer(ratio(peer_ms, bare_ms))},
      {"copy_in_ms", rounded(median_of(result.copy_in_ms))},
      {"reduce_ms", rounded(median_of(result.reduce_ms))},
      {"wait_ms", rounded(median_of(result.wait_ms))},
      {"extra_bytes", std::llround(result.extra_bytes)},
      {"peer_extra_bytes", plan.has_peer() ? Json(std::llround(result.peer_extra_bytes)) : nullptr},
      {"core_roundtrip_ns", median_json(kDigits, result.roundtrips_ns)},
      {"raw_ms", std::move(raw)}};
  return json.dump() + "\n";
}

std::string ddp_bench_table(const DdpBenchPlan& plan, const DdpBenchResult& result) {
  const double bare_ms = median_of(result.bare_ms);
  const double lockstep_ms = median_of(result.lockstep_ms);
  const double peer_ms = median_of(result.peer_ms);
  const double longest_ms = std::max({bare_ms, lockstep_ms, peer_ms});
  constexpr double kMega = 1e6;
  std::string text = fmt::format(
      "{}, {} rank{}, {:.1f} MB of gradients, backend {}; milliseconds per step, until the slowest "
      "rank has made it\n",
      plan.model, result.num_ranks, result.num_ranks == 1 ? "" : "s",
      static_cast<double>(result.gradient_bytes) / kMega, result.backend);
  text += fmt::format("{:>9} {:>11} {:>10}\n", "variant", "step", "of bare");
  text += row(plan, "bare", result.bare_ms, bare_ms, longest_ms);
  text += row(plan, "lockstep", result.lockstep_ms, bare_ms, longest_ms);
  if (plan.has_peer()) {
    text += row(plan, "c10d", result.peer_ms, bare_ms, longest_ms);
  }
  text += fmt::format(
      "lockstep: copy in {:.2f} ms, reducing {:.2f} ms, waiting {:.2f} ms, {:.1f} MB of memory "
      "beyond bare\n",
      median_of(result.copy_in_ms), median_of(result.reduce_ms), median_of(result.wait_ms),
      result.extra_bytes / kMega);
  if (plan.has_peer()) {
    text += fmt::format("speedup {:.2f}x against c10d\n", ratio(peer_ms, lockstep_ms));
  }
  return text;
}

}  // namespace lockstep

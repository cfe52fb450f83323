#include "bench/allreduce/bench_result.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/figures.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDigits = 3;

double rounded(double value) {
  return rounded_to(kDigits, value);
}

// Busbw as nccl-tests defines it: what a link would have carried in the best algorithm.
double bus_factor(BenchOperation operation, int num_ranks) {
  const double others = static_cast<double>(num_ranks - 1) / num_ranks;
  switch (operation) {
    case BenchOperation::AllReduce:
      return 2 * others;
    case BenchOperation::AllGather:
    case BenchOperation::ReduceScatter:
      return others;
    case BenchOperation::Broadcast:
      break;
  }
  return 1;
}

double bus_gb_per_s(const BenchPlan& plan, const BenchPlace& place, const BenchResult& result) {
  return static_cast<double>(result.bytes) *
         bus_factor(bench_operation(plan.operation), place.num_ranks) /
         (result.lockstep.median_us() * 1e3);
}

double ratio(double above, double below) {
  return below > 0 ? above / below : 0;
}

std::vector<double> flat(const std::vector<std::vector<double>>& repeats) {
  std::vector<double> all;
  for (const auto& repeat : repeats) {
    all.insert(all.end(), repeat.begin(), repeat.end());
  }
  return all;
}

double median_of_medians(const std::vector<std::vector<double>>& repeats) {
  std::vector<double> medians;
  for (const auto& repeat : repeats) {
    medians.push_back(median(repeat));
  }
  return median(std::move(medians));
}

const BenchPeerTimes* best_of(const std::vector<BenchPeerTimes>& peers) {
  const auto best = std::min_element(peers.begin(), peers.end(), [](const auto& a, const auto& b) {
    return a.times.median_us() < b.times.median_us();
  });
  return best == peers.end() ? nullptr : &*best;
}

// The fastest peer by the other clock may be another one.
double best_from_first_us(const std::vector<BenchPeerTimes>& peers) {
  double best = std::numeric_limits<double>::infinity();
  for (const BenchPeerTimes& peer : peers) {
    best = std::min(best, peer.times.median_from_first_us());
  }
  return best;
}

void add_own(Json& json, const BenchResult& result) {
  json["bytes"] = result.bytes;
  json["lockstep_us"] = rounded(result.lockstep.median_us());
  json["lockstep_p90_us"] = rounded(result.lockstep.percentile_us(90));
  json["lockstep_p99_us"] = rounded(result.lockstep.percentile_us(99));
  json["lockstep_from_first_us"] = rounded(result.lockstep.median_from_first_us());
  json["staged_us"] = rounded(result.staged.median_us());
  json["staged_p90_us"] = rounded(result.staged.percentile_us(90));
  json["staged_from_first_us"] = rounded(result.staged.median_from_first_us());
}

// The figures against the first peer, as they are when there is only one, and against the best.
void add_peers(Json& json, const BenchResult& result) {
  if (result.peers.empty()) {
    return;
  }
  const double lockstep_us = result.lockstep.median_us();
  const double staged_us = result.staged.median_us();
  const double staged_from_first_us = result.staged.median_from_first_us();
  const BenchTimes& first = result.peers[0].times;
  json["peer_us"] = rounded(first.median_us());
  json["peer_from_first_us"] = rounded(first.median_from_first_us());
  json["speedup"] = rounded(ratio(first.median_us(), lockstep_us));
  json["staged_speedup"] = rounded(ratio(first.median_us(), staged_us));
  json["staged_from_first_speedup"] =
      rounded(ratio(first.median_from_first_us(), staged_from_first_us));
  for (const BenchPeerTimes& peer : result.peers) {
    json["peers"][peer.name] = rounded(peer.times.median_us());
    json["peers_from_first_us"][peer.name] = rounded(peer.times.median_from_first_us());
    json["peers_iterations"][peer.name] = peer.times.num_operations();
  }
  const BenchPeerTimes& best = *best_of(result.peers);
  json["best_peer"] = best.name;
  json["speedup_over_best"] = rounded(ratio(best.times.median_us(), lockstep_us));
  json["staged_speedup_over_best"] = rounded(ratio(best.times.median_us(), staged_us));
  json["staged_from_first_speedup_over_best"] =
      rounded(ratio(best_from_first_us(result.peers), staged_from_first_us));
}

Json raw_json(const BenchResult& result) {
  Json raw{{"lockstep", raw_figures_json(kDigits, flat(result.lockstep.batches_us))},
           {"staged", raw_figures_json(kDigits, flat(result.staged.batches_us))},
           {"staged_from_first", raw_figures_json(kDigits, flat(result.staged.from_first_us))}};
  if (!result.peers.empty()) {
    raw["peer"] = raw_figures_json(kDigits, flat(result.peers[0].times.batches_us));
  }
  for (const BenchPeerTimes& peer : result.peers) {
    raw["peers"][peer.name] = raw_figures_json(kDigits, flat(peer.times.batches_us));
  }
  return raw;
}

Json result_json(const BenchPlan& plan, const BenchPlace& place, const BenchResult& result) {
  Json json;
  add_own(json, result);
  add_peers(json, result);
  json["busbw_gb_per_s"] = rounded(bus_gb_per_s(plan, place, result));
  const double pass_us = result.memory_pass.median_from_first_us();
  json["memory_pass_us"] = rounded(pass_us);
  json["memory_passes"] = rounded(ratio(result.lockstep.median_from_first_us(), pass_us));
  json["core_roundtrip_ns"] = median_json(kDigits, result.roundtrips_ns);
  if (result.network_bytes_per_node) {
    json["network_bytes_per_node"] = rounded(*result.network_bytes_per_node);
  }
  json["iterations"] = result.lockstep.num_operations();
  json["batch"] = result.lockstep.batch;
  if (!result.peers.empty()) {
    json["peer_iterations"] = result.peers[0].times.num_operations();
    json["peer_batch"] = result.peers[0].times.batch;
  }
  json["raw_us"] = raw_json(result);
  return json;
}

std::string size_text(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  while (unit + 1 < std::size(kUnits) && bytes >= 1024 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

}  // namespace

void BenchTimes::begin_repeat() {
  batches_us.emplace_back();
  from_first_us.emplace_back();
}

void BenchTimes::add(const BatchStamps& stamps) {
  const std::vector<double>& last_us = stamps.last_us;
  for (size_t i = 1; i < last_us.size(); ++i) {
    operations_us.push_back(last_us[i] - last_us[i - 1]);
  }
  batches_us.back().push_back((last_us.back() - last_us.front()) / batch);
  from_first_us.back().push_back((last_us.back() - stamps.first_us) / batch);
}

double BenchTimes::median_us() const {
  return median_of_medians(batches_us);
}

double BenchTimes::median_from_first_us() const {
  return median_of_medians(from_first_us);
}

double BenchTimes::percentile_us(double percent) const {
  if (operations_us.empty()) {
    return 0;
  }
  std::vector<double> sorted = operations_us;
  std::sort(sorted.begin(), sorted.end());
  const double rank = std::ceil(percent / 100 * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

std::string bench_json(const BenchPlan& plan, const BenchPlace& place,
                       const std::vector<BenchResult>& results) {
  std::vector<double> roundtrips;
  Json list = Json::array();
  for (const BenchResult& result : results) {
    roundtrips.insert(roundtrips.end(), result.roundtrips_ns.begin(), result.roundtrips_ns.end());
    list.push_back(result_json(plan, place, result));
  }
  Json json{{"operation", plan.operation},
            {"ranks", place.num_ranks},
            {"nodes", plan.nodes},
            {"backend", place.backend},
            {"bound", place.is_bound},
            {"peer", plan.peers.empty() ? Json(nullptr) : Json(plan.peers[0])},
            {"missing", plan.missing.empty() ? Json::object() : Json(plan.missing)},
            {"dtype", plan.dtype},
            {"wire", plan.wire},
            {"rate", plan.rate.empty() ? Json(nullptr) : Json(plan.rate)},
            {"repeats", plan.repeats},
            {"core_roundtrip_ns", median_json(kDigits, roundtrips)},
            {"results", std::move(list)}};
  return json.dump() + "\n";
}

std::string bench_header(const BenchPlan& plan, const BenchPlace& place) {
  std::string text = fmt::format("{}, {} ranks", plan.operation, place.num_ranks);
  if (plan.nodes > 1) {
    text += fmt::format(" on {} nodes{}", plan.nodes,
                        plan.rate.empty() ? "" : fmt::format(" ({} between them)", plan.rate));
  }
  text +=
      fmt::format(", {}, backend {}; microseconds per operation, until the slowest rank has it\n",
                  plan.dtype, place.backend);
  text += fmt::format("{:>9} {:>10} {:>10} {:>10} {:>10}", "size", "lockstep", "p90", "staged",
                      "from 1st");
  for (const std::string& peer : plan.peers) {
    text += fmt::format(" {:>10}", peer);
  }
  if (!plan.peers.empty()) {
    text += fmt::format(" {:>8} {:>8}", "speedup", "staged");
  }
  text += fmt::format(" {:>9} {:>10}", "bus GB/s", "roundtrip");
  if (plan.bars && !plan.peers.empty()) {
    text += "  time, of the best peer's";
  }
  return text + "\n";
}

std::string bench_row(const BenchPlan& plan, const BenchPlace& place, const BenchResult& result) {
  const double lockstep_us = result.lockstep.median_us();
  const double staged_us = result.staged.median_us();
  std::string text = fmt::format(
      "{:>9} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f}", size_text(result.bytes), lockstep_us,
      result.lockstep.percentile_us(90), staged_us, result.staged.median_from_first_us());
  for (const BenchPeerTimes& peer : result.peers) {
    text += fmt::format(" {:>10.1f}", peer.times.median_us());
  }
  const BenchPeerTimes* best = best_of(result.peers);
  const double best_us = best == nullptr ? 0 : best->times.median_us();
  if (best != nullptr) {
    text +=
        fmt::format(" {:>7.2f}x {:>7.2f}x", ratio(best_us, lockstep_us), ratio(best_us, staged_us));
  }
  text += fmt::format(" {:>9.2f} {:>7.0f} ns", bus_gb_per_s(plan, place, result),
                      median(result.roundtrips_ns));
  if (plan.bars && best != nullptr) {
    text += "  " + bench_bar(ratio(lockstep_us, best_us));
  }
  return text + "\n";
}

}  // namespace lockstep

#include "bench_result.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kBarWidth = 20;

double rounded(double value) {
  return std::round(value * 1000) / 1000;
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
  return static_cast<double>(result.bytes) * bus_factor(plan.operation, place.num_ranks) /
         (result.lockstep.median_us() * 1e3);
}

double ratio(double above, double below) {
  return below > 0 ? above / below : 0;
}

Json rounded_list(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) {
    list.push_back(rounded(value));
  }
  return list;
}

Json roundtrip_json(const std::vector<double>& values) {
  return values.empty() ? Json(nullptr) : Json(rounded(median(values)));
}

Json result_json(const BenchPlan& plan, const BenchPlace& place, const BenchResult& result) {
  const double lockstep_us = result.lockstep.median_us();
  const double staged_us = result.staged.median_us();
  Json json{{"bytes", result.bytes},
            {"lockstep_us", rounded(lockstep_us)},
            {"lockstep_p99_us", rounded(result.lockstep.p99_us())},
            {"staged_us", rounded(staged_us)}};
  Json raw{{"lockstep", rounded_list(result.lockstep.raw_us())},
           {"staged", rounded_list(result.staged.raw_us())}};
  if (!result.peer.empty()) {
    const double peer_us = result.peer.median_us();
    json["peer_us"] = rounded(peer_us);
    json["speedup"] = rounded(ratio(peer_us, lockstep_us));
    json["staged_speedup"] = rounded(ratio(peer_us, staged_us));
    raw["peer"] = rounded_list(result.peer.raw_us());
  }
  json["busbw_gb_per_s"] = rounded(bus_gb_per_s(plan, place, result));
  json["limit_us"] = rounded(result.limit.median_us());
  json["fraction_of_limit"] = rounded(ratio(result.limit.median_us(), lockstep_us));
  json["core_roundtrip_ns"] = roundtrip_json(result.roundtrips_ns);
  if (result.network_bytes_per_node) {
    json["network_bytes_per_node"] = rounded(*result.network_bytes_per_node);
  }
  json["iterations"] = result.lockstep.num_operations();
  json["batch"] = result.lockstep.batch;
  if (!result.peer.empty()) {
    json["peer_iterations"] = result.peer.num_operations();
    json["peer_batch"] = result.peer.batch;
  }
  json["raw_us"] = std::move(raw);
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

double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string bench_bar(double fraction) {
  constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double limited = std::clamp(fraction, 0.0, 1.0);
  const auto eighths = std::max<long>(1, std::lround(limited * kBarWidth * 8));
  std::string text;
  for (long i = 0; i < eighths / 8; ++i) {
    text += "█";
  }
  text += kEighths[eighths % 8];
  const long used = (eighths + 7) / 8;
  for (long i = used; i < kBarWidth; ++i) {
    text += "·";
  }
  return text;
}

double BenchTimes::median_us() const {
  std::vector<double> medians;
  for (const auto& repeat : batches_us) {
    medians.push_back(median(repeat));
  }
  return median(std::move(medians));
}

double BenchTimes::p99_us() const {
  if (operations_us.empty()) {
    return 0;
  }
  std::vector<double> sorted = operations_us;
  std::sort(sorted.begin(), sorted.end());
  const auto index = static_cast<size_t>(std::ceil(0.99 * static_cast<double>(sorted.size()))) - 1;
  return sorted[index];
}

std::vector<double> BenchTimes::raw_us() const {
  std::vector<double> all;
  for (const auto& repeat : batches_us) {
    all.insert(all.end(), repeat.begin(), repeat.end());
  }
  return all;
}

std::string bench_json(const BenchPlan& plan, const BenchPlace& place,
                       const std::vector<BenchResult>& results) {
  std::vector<double> roundtrips;
  Json list = Json::array();
  for (const BenchResult& result : results) {
    roundtrips.insert(roundtrips.end(), result.roundtrips_ns.begin(), result.roundtrips_ns.end());
    list.push_back(result_json(plan, place, result));
  }
  Json json{{"operation", plan.operation_name},
            {"ranks", place.num_ranks},
            {"nodes", plan.num_nodes},
            {"backend", place.backend},
            {"peer", plan.has_peer ? Json("gloo") : Json(nullptr)},
            {"dtype", plan.dtype},
            {"wire", plan.wire},
            {"rate", plan.rate.empty() ? Json(nullptr) : Json(plan.rate)},
            {"repeats", plan.repeats},
            {"core_roundtrip_ns", roundtrip_json(roundtrips)},
            {"results", std::move(list)}};
  return json.dump() + "\n";
}

std::string bench_header(const BenchPlan& plan, const BenchPlace& place) {
  std::string text = fmt::format("{}, {} ranks", plan.operation_name, place.num_ranks);
  if (plan.num_nodes > 1) {
    text += fmt::format(" on {} nodes{}", plan.num_nodes,
                        plan.rate.empty() ? "" : fmt::format(" ({} between them)", plan.rate));
  }
  text +=
      fmt::format(", {}, backend {}; microseconds per operation, until the slowest rank has it\n",
                  plan.dtype, place.backend);
  text += fmt::format("{:>9} {:>11} {:>11} {:>11}", "size", "lockstep", "p99", "staged");
  if (plan.has_peer) {
    text += fmt::format(" {:>11} {:>8}", "gloo", "speedup");
  }
  text += fmt::format(" {:>10} {:>9} {:>10}", "bus GB/s", "of limit", "roundtrip");
  if (plan.bars) {
    text += plan.has_peer ? "  time, of gloo's" : "  of limit";
  }
  return text + "\n";
}

std::string bench_row(const BenchPlan& plan, const BenchPlace& place, const BenchResult& result) {
  const double lockstep_us = result.lockstep.median_us();
  const double fraction = ratio(result.limit.median_us(), lockstep_us);
  std::string text = fmt::format("{:>9} {:>11.1f} {:>11.1f} {:>11.1f}", size_text(result.bytes),
                                 lockstep_us, result.lockstep.p99_us(), result.staged.median_us());
  const double peer_us = result.peer.median_us();
  if (!result.peer.empty()) {
    text += fmt::format(" {:>11.1f} {:>7.2f}x", peer_us, ratio(peer_us, lockstep_us));
  }
  text += fmt::format(" {:>10.2f} {:>8.0f}% {:>7.0f} ns", bus_gb_per_s(plan, place, result),
                      100 * fraction, median(result.roundtrips_ns));
  if (plan.bars) {
    text += "  " + bench_bar(result.peer.empty() ? fraction : ratio(lockstep_us, peer_us));
  }
  return text + "\n";
}

}  // namespace lockstep

#include "bench/checkpoint/bench_checkpoint_result.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "bench/allreduce/bench_result.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiga = 1e9;

double rounded(double value) {
  return std::round(value * 1e4) / 1e4;
}

Json raw_json(const std::vector<double>& seconds) {
  Json list = Json::array();
  for (const double value : seconds) {
    list.push_back(rounded(value));
  }
  return list;
}

double disk_s(const CheckpointBenchResult& result) {
  const double buffered = median(result.disk_buffered_s);
  return result.disk_direct_s.empty() ? buffered : std::min(buffered, median(result.disk_direct_s));
}

double gb_per_s(const CheckpointBenchResult& result, double seconds) {
  return seconds > 0 ? static_cast<double>(result.state_bytes) / kGiga / seconds : 0;
}

}  // namespace

CheckpointBenchPlan read_checkpoint_bench_plan(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    return {.state_bytes = json.at("state_bytes").get<int64_t>(),
            .step_ms = json.at("step_ms").get<int>(),
            .folder = json.at("folder").get<std::string>(),
            .repeats = json.at("repeats").get<int>(),
            .json = json.at("json").get<bool>()};
  } catch (const nlohmann::json::exception& error) {
    throw UsageError(
        "the ranks were given no plan ({}); start them with `lockstep bench checkpoint`",
        error.what());
  }
}

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
       {{"calm_step", raw_json(result.calm_step_s)},
        {"stall", raw_json(result.stall_s)},
        {"training_save", raw_json(result.training_save_s)},
        {"save", raw_json(result.save_s)},
        {"sync_save", raw_json(result.sync_save_s)},
        {"disk_buffered", raw_json(result.disk_buffered_s)},
        {"disk_direct", raw_json(result.disk_direct_s)}}}};
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

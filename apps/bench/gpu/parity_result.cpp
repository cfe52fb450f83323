#include "bench/gpu/parity_result.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// What is told of one model on one number of ranks.
struct Case {
  std::string model;
  int ranks = 1;
  double to_one_rank = 0;
  double to_cpu = 0;
  bool same_bits_across_ranks = false;
  bool shards_same_bits = false;
  double first_loss = 0;
  double last_loss = 0;
  double loss_drop = 0;
};

// The share of its loss that the first batch has lost when it comes for the last time.
double loss_drop(const std::vector<double>& losses) {
  const size_t last = (losses.size() - 1) / kParityBatches * kParityBatches;
  return (losses.front() - losses[last]) / losses.front();
}

std::vector<Case> cases_of(const ParityPlan& plan, const ParityResult& result) {
  std::vector<Case> cases;
  for (const std::string& model : plan.models) {
    const ParityRun& one_rank = result.plain.at({model, plan.ranks.front()});
    const ParityRun& first = result.sharded.at({model, plan.ranks.front()});
    for (const int ranks : plan.ranks) {
      const ParityRun& run = result.plain.at({model, ranks});
      const ParityRun& sharded = result.sharded.at({model, ranks});
      cases.push_back(
          {.model = model,
           .ranks = ranks,
           .to_one_rank = largest_difference(run.losses, one_rank.losses),
           .to_cpu = largest_difference(run.losses, result.cpu.at(model).losses),
           .same_bits_across_ranks = run.same_bits && sharded.same_bits,
           .shards_same_bits = sharded.bits == first.bits && sharded.losses == first.losses,
           .first_loss = run.losses.front(),
           .last_loss = run.losses.back(),
           .loss_drop = loss_drop(run.losses)});
    }
  }
  return cases;
}

}  // namespace

double largest_difference(const std::vector<double>& losses, const std::vector<double>& reference) {
  double largest = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double difference = std::abs(losses[i] - reference[i]) / std::abs(reference[i]);
    // A loss that is no number is as far away as can be.
    largest = std::isfinite(difference) ? std::max(largest, difference) : HUGE_VAL;
  }
  return largest;
}

std::string parity_json(const ParityPlan& plan, const ParityResult& result) {
  Json list = Json::array();
  for (const Case& one : cases_of(plan, result)) {
    list.push_back({{"model", one.model},
                    {"ranks", one.ranks},
                    {"max_loss_difference_to_one_rank", one.to_one_rank},
                    {"max_loss_difference_to_cpu", one.to_cpu},
                    {"same_bits_across_ranks", one.same_bits_across_ranks},
                    {"shards_same_bits", one.shards_same_bits},
                    {"first_loss", one.first_loss},
                    {"last_loss", one.last_loss},
                    {"loss_drop", one.loss_drop}});
  }
  const Json json{{"device", result.device_name},
                  {"steps", plan.steps},
                  {"shards", kParityShards},
                  {"reproducible", is_reproducible(plan, result)},
                  {"cases", list}};
  return json.dump() + "\n";
}

std::string parity_table(const ParityPlan& plan, const ParityResult& result) {
  std::string text = fmt::format(
      "{} steps on {}; the largest relative difference of a loss\n"
      "{:>14} {:>6} {:>13} {:>13} {:>10} {:>10}\n",
      plan.steps, result.device_name, "model", "ranks", "to one rank", "to the CPU", "same bits",
      "shards");
  for (const Case& one : cases_of(plan, result)) {
    text += fmt::format("{:>14} {:>6} {:>13.2e} {:>13.2e} {:>10} {:>10}\n", one.model, one.ranks,
                        one.to_one_rank, one.to_cpu, one.same_bits_across_ranks ? "yes" : "NO",
                        one.shards_same_bits ? "same bits" : "DIFFER");
  }
  return text;
}

bool is_reproducible(const ParityPlan& plan, const ParityResult& result) {
  const auto cases = cases_of(plan, result);
  return std::all_of(cases.begin(), cases.end(), [](const Case& one) {
    return one.same_bits_across_ranks && one.shards_same_bits;
  });
}

}  // namespace lockstep

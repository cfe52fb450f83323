#pragma once

// The figures of `lockstep bench gpu-parity`, from training runs to what is printed.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu/parity_plan.h"
#include "bench/gpu/parity_train.h"

namespace lockstep {

struct ParityResult {
  std::string device_name;
  std::map<std::string, ParityRun> cpu;                      // one rank, by model
  std::map<std::pair<std::string, int>, ParityRun> plain;    // by model and ranks
  std::map<std::pair<std::string, int>, ParityRun> sharded;  // with kParityShards
};

// max |a - b| / |b| over all steps.
double largest_difference(const std::vector<double>& losses, const std::vector<double>& reference);

std::string parity_json(const ParityPlan& plan, const ParityResult& result);
std::string parity_table(const ParityPlan& plan, const ParityResult& result);

// Whether all ranks of every run held the same bits, and every number of ranks made the same of the
// shards.
bool is_reproducible(const ParityPlan& plan, const ParityResult& result);

}  // namespace lockstep

#pragma once

// The figures of `lockstep bench data`, from raw times to what is printed.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/data/bench_data_plan.h"

namespace lockstep {

inline constexpr int64_t kBenchSequence = 1024;  // tokens

struct DataBenchResult {
  int64_t picture_bytes = 0;
  int64_t token_bytes = 0;                 // that a pass reads
  std::vector<double> pictures_s;          // of a pass
  std::vector<double> peer_s;              // empty without a peer
  std::optional<double> pixel_difference;  // from the peer's, on average, in steps of 1/255
  std::vector<double> tokens_s;
};

std::string data_bench_json(const DataBenchPlan& plan, const DataBenchResult& result);
std::string data_bench_table(const DataBenchPlan& plan, const DataBenchResult& result);

}  // namespace lockstep

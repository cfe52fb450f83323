#pragma once

// The figures of `lockstep bench ddp`, from raw times to what is printed.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/ddp/bench_ddp_plan.h"

namespace lockstep {

// There is one number for each timed step of each repeat, in milliseconds.
using StepFigures = std::vector<std::vector<double>>;

double median_of(const StepFigures& figures);  // of the repeats' medians

struct DdpBenchResult {
  int num_ranks = 1;
  std::string backend;
  int64_t gradient_bytes = 0;
  // Until the slowest rank has made its step.
  StepFigures bare_ms;
  StepFigures lockstep_ms;
  StepFigures peer_ms;  // empty without a peer
  // Of lockstep's steps; means over the ranks.
  StepFigures copy_in_ms;
  StepFigures reduce_ms;
  StepFigures wait_ms;
  // Memory between two steps, mean over the ranks.
  double extra_bytes = 0;
  double peer_extra_bytes = 0;
  std::vector<double> roundtrips_ns;  // beside the figures, in order
};

std::string ddp_bench_json(const DdpBenchPlan& plan, const DdpBenchResult& result);
std::string ddp_bench_table(const DdpBenchPlan& plan, const DdpBenchResult& result);

}  // namespace lockstep

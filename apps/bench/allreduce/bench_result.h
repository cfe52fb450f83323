#pragma once

// The figures of `lockstep bench`, from raw times to what is printed.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/allreduce/bench_plan.h"

namespace lockstep {

// When all ranks were done with each operation of a batch, in microseconds of the host's clock.
struct BatchStamps {
  double first_us = 0;          // the first rank began
  std::vector<double> last_us;  // the last rank began; the last one had operation 1, 2, ...
};

// Times of one variant at one size: until the slowest rank has it, per operation, in
// microseconds.
struct BenchTimes {
  std::vector<std::vector<double>> batches_us;     // per repeat: the mean operation of each batch
  std::vector<std::vector<double>> from_first_us;  // the same, from when the first rank began
  std::vector<double> operations_us;               // every single operation of all repeats
  int batch = 1;                                   // operations back to back per batch

  void begin_repeat();
  void add(const BatchStamps& stamps);  // of `batch` operations, to the repeat that has begun

  bool empty() const { return batches_us.empty(); }
  double median_us() const;                    // of the repeats' medians
  double median_from_first_us() const;         // likewise
  double percentile_us(double percent) const;  // of single operations
  int64_t num_operations() const { return static_cast<int64_t>(operations_us.size()); }
};

struct BenchPeerTimes {
  std::string name;
  BenchTimes times;
};

struct BenchResult {
  int64_t bytes = 0;
  BenchTimes lockstep;
  BenchTimes staged;
  BenchTimes memory_pass;
  std::vector<BenchPeerTimes> peers;             // as BenchPlan::peers; an MPI's times on rank 0
  std::vector<double> roundtrips_ns;             // beside the figures, in order
  std::optional<double> network_bytes_per_node;  // and operation: of the node that sends most
};

// Where it was measured.
struct BenchPlace {
  int num_ranks = 1;
  std::string backend;
  bool is_bound = false;  // each rank to a core of its own
};

std::string bench_json(const BenchPlan& plan, const BenchPlace& place,
                       const std::vector<BenchResult>& results);

// The table, line by line as the sizes come.
std::string bench_header(const BenchPlan& plan, const BenchPlace& place);
std::string bench_row(const BenchPlan& plan, const BenchPlace& place, const BenchResult& result);

}  // namespace lockstep

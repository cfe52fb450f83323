#pragma once

// One training run of `lockstep bench gpu-parity`.

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/comm/group.h>

#include "bench/ddp/bench_models.h"

namespace lockstep {

struct ParityOptions {
  std::string model;
  at::Device device = at::kCPU;
  int steps = 100;
  int shards = 0;  // see DdpOptions
};

struct ParityRun {
  std::vector<double> losses;  // of the global batch, before each step
  uint64_t bits = 0;           // stands for all parameters
  bool same_bits = false;      // on all ranks
};

// The batches of every run, drawn on the CPU.
class ParityBatches {
 public:
  ParityBatches();

  BenchBatch next(const BenchModel& model);

 private:
  at::Generator generator_;
};

// Collective: SGD at 0.01 with DistributedDataParallel in float32, on batches that do not depend on
// the number of ranks. Every rank returns the same.
ParityRun train_for_parity(Group group, const ParityOptions& options);

}  // namespace lockstep

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

// How many batches there are. They come again and again, so that a model learns them: losses of
// batches that it has never seen would hardly tell right gradients from wrong ones.
inline constexpr int kParityBatches = 4;

// The batches of every run, drawn on the CPU.
class ParityBatches {
 public:
  explicit ParityBatches(const BenchModel& model);

  const BenchBatch& of_step(int step) const;

 private:
  std::vector<BenchBatch> batches_;
};

// Collective: SGD at 0.01 with DistributedDataParallel in float32, on batches that do not depend on
// the number of ranks. Every rank returns the same.
ParityRun train_for_parity(Group group, const ParityOptions& options);

}  // namespace lockstep

#pragma once

// One operation at one size, on this rank: its buffers, and the ways of carrying it out that are
// compared.

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <lockstep/comm/group.h>

#include "bench/allreduce/bench_pattern.h"
#include "bench/allreduce/bench_plan.h"

namespace lockstep {

enum class BenchVariant {
  Lockstep,   // on memory of group.allocate()
  Staged,     // on ordinary tensors
  Gloo,       // libtorch's, on the same ordinary tensors
  MemoryPass  // no operation: each rank reads and writes its own memory of group.allocate() once
};

using BenchPeer = c10::intrusive_ptr<c10d::Backend>;

struct BenchCaseOptions {
  BenchOperation operation = BenchOperation::AllReduce;
  at::ScalarType type = at::kFloat;
  int64_t bytes = 0;  // of the larger of input and output; rounded down to what the ranks can share
  int num_slots = 1;  // buffers, one behind the other: as many operations can follow each other
};

class BenchCase {
 public:
  // Collective. `peer` may be null: then there is no BenchVariant::Gloo.
  BenchCase(Group group, BenchPeer peer, BenchCaseOptions options);

  // Writes this rank's input, freshly, for the operation numbered `salt`.
  void write(BenchVariant variant, int slot, uint64_t salt);

  void run(BenchVariant variant, int slot);

  // Throws Error if the output is not what operation `salt` must give.
  void check(BenchVariant variant, int slot, uint64_t salt, CheckExtent extent) const;

 private:
  struct Slot {
    at::Tensor input;  // all_reduce and broadcast: the same tensor as output
    at::Tensor output;
    std::vector<at::Tensor> tensors;  // {output}, as c10d wants it
  };

  std::vector<Slot> make_slots(bool in_place);
  const Slot& slot_of(BenchVariant variant, int slot) const;
  void run_lockstep(const Slot& slot);
  void run_peer(Slot& slot);

  Group group_;
  BenchPeer peer_;
  const BenchCaseOptions options_;
  int64_t input_count_ = 0;  // elements
  int64_t output_count_ = 0;
  std::vector<Slot> in_place_;
  std::vector<Slot> ordinary_;
};

}  // namespace lockstep

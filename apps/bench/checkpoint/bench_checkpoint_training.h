#pragma once

// The training that goes on while `lockstep bench checkpoint` saves its state.

#include <cstdint>
#include <vector>

#include <ATen/core/Generator.h>

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/group.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/models/my_transformer.h>

#include "bench/checkpoint/bench_checkpoint_plan.h"

namespace lockstep {

// A transformer (lockstep/models/my_transformer.h), trained by SGD with momentum on all ranks. Its
// parameters and their momentum are the state; a tensor called `rest` fills it up to the size that
// is asked for.
class CheckpointTraining {
 public:
  // Collective. The batch is as large as a step of plan.step_ms allows.
  CheckpointTraining(Group group, const CheckpointBenchPlan& plan);

  const std::vector<NamedTensor>& state() const { return state_; }

  // Makes forward, backward with its all-reduce, writer->wait_captured() unless it is null, and the
  // update.
  void step(CheckpointWriter* writer);

  // Returns the CRC-32 of each tensor of the state, in order.
  std::vector<uint32_t> checksums() const;

 private:
  void make_state(int64_t state_bytes);
  void choose_batch(int step_ms);
  void update();

  Group group_;
  const at::Generator generator_;  // every rank has data of its own
  MyTransformer model_;
  DistributedDataParallel<MyTransformer> ddp_;
  std::vector<at::Tensor> momenta_;  // one per parameter
  at::Tensor rest_;
  std::vector<NamedTensor> state_;
  int64_t num_tokens_ = 64;  // of a batch
};

uint32_t checksum_of(const at::Tensor& tensor);

}  // namespace lockstep

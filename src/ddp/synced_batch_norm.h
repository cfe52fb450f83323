#pragma once

// The operator that SyncBatchNorm and converted BatchNorm modules call.

#include <ATen/core/Tensor.h>

#include <lockstep/comm/group.h>

namespace lockstep::ddp {

// Undefined tensors: not affine; no running statistics.
struct BatchNormTensors {
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
};

struct BatchNormNumbers {
  double momentum = 0;  // share of this batch in the running statistics
  double eps = 0;
  at::Tensor share = {};  // instead of momentum, where the host does not know it: float64 []
};

// Collective: normalises `input` (N, C, ...) by the statistics of all ranks' inputs together,
// updates the running ones, and can be differentiated once.
at::Tensor synced_batch_norm(const at::Tensor& input, const BatchNormTensors& tensors,
                             const BatchNormNumbers& numbers, const Group& group);

// Throws UsageError unless `input` is (N, C, ...) with that many channels.
void check_batch_norm_input(const at::Tensor& input, int64_t num_channels);

// Throws UsageError for one value per channel, over all ranks.
void check_values_per_channel(double num_values, const at::Tensor& input);

}  // namespace lockstep::ddp

#pragma once

// SyncBatchNorm: batch normalisation over the batch of all ranks together.
//
// torch::nn::BatchNorm takes mean and variance from the rank's own part of the batch. With few
// samples per rank they are noisy, and W ranks train another model than one process would. Here the
// ranks exchange their statistics, and every rank normalises by those of the whole batch.
//
// Example:
//   lockstep::SyncBatchNorm norm(torch::nn::BatchNormOptions(64).eps(1e-3), group);
//   auto y = norm(x);  // x is (N, 64, ...), and N may differ between ranks
//
// A model that is written with torch::nn::BatchNorm1d, 2d and 3d is converted; its members remain
// what they are.
//
// Example:
//   MyModel model;
//   lockstep::convert_sync_batch_norm(*model, group);
//   lockstep::DistributedDataParallel ddp(model, group);
//
// Communication: in training mode, forward makes one all-gather of 2 C + 1 numbers, and backward
// one all-reduce of 2 C numbers if the input needs a gradient; eval mode makes none. So in training
// every rank must call forward and backward equally often, and a rank without samples calls them
// with an empty batch, (0, C, ...). Both operations are blocking. A group of its own,
// group.split(0), keeps them from waiting for a bucket that DistributedDataParallel reduces at that
// moment.
//
// Gradients are those of one BatchNorm over the whole batch. The input's gradient includes what
// this rank's samples change on the others. The gradients of weight and bias are this rank's part
// of the sum, which DistributedDataParallel averages like any other. It is not twice
// differentiable: backward with create_graph throws UsageError. Running statistics have the same
// bits on all ranks.
//
// Types: float32 and float64, and float16 or bfloat16 input with float32 statistics. The layout of
// the input (channels last) is kept. Tensors are on the CPU or on a GPU, where statistics are
// computed too; ranks whose GPUs are of one model get the same bits.

#include <cstdint>
#include <ostream>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <lockstep/comm/group.h>

namespace lockstep {

// The options, the members (weight, bias, running_mean, running_var, num_batches_tracked) and their
// names in a checkpoint are those of torch::nn::BatchNorm1d, 2d and 3d, so each loads what another
// saved. Three options have a special meaning:
//   momentum = nullopt           running statistics are the plain average over all batches so far
//   affine = false               there is no weight and no bias
//   track_running_stats = false  there are no running statistics; eval mode uses the rank's batch
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  // `norm_options` may be just the number of channels. The module holds a copy of the group's
  // handle.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& norm_options, Group group);

  // Normalises `input`, (N, C, ...), of two dimensions or more. It is collective in training mode.
  // Throws UsageError if the shape is wrong, and on every rank if all of them together have one
  // value per channel, since its variance estimates nothing. An empty batch on all ranks changes no
  // statistics.
  torch::Tensor forward(const torch::Tensor& input);

  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const torch::Tensor& input) override;

 private:
  Group group_;
};
TORCH_MODULE(SyncBatchNorm);

// Makes every torch::nn::BatchNorm1d, 2d and 3d in `module`, and `module` itself if it is one,
// normalise over the batch of all ranks of `group` when it trains. Returns how many there are. The
// call is not collective.
//
// The modules are not replaced, because C++ cannot exchange the object behind a user's member
// (`torch::nn::BatchNorm2d norm;`), and replace_module() would change only the list of children,
// not what forward() calls. Instead each module's running_mean is marked with the group, and the
// operator that all of them call, aten::batch_norm, looks for the mark. So it works for members,
// Sequential, ModuleList and AnyModule alike, and parameters, optimizers and checkpoints made
// before the conversion remain valid. This has consequences:
//   - The first conversion registers a kernel for aten::batch_norm, for the whole process. It
//     passes every call without a mark, and every call in eval mode, on to libtorch's own kernel.
//   - A module's clone(), a module after reset(), and a running_mean that is assigned anew have no
//     mark: convert them again. .to(), train(), eval() and loading a checkpoint keep it.
//   - A module without running statistics gets a running_mean for the mark, which is neither
//     registered nor saved nor used.
//   - libtorch's modules refuse a batch with one value per channel on the calling rank (one row of
//     (N, C)) before they reach the operator. Declare a SyncBatchNorm where that may happen.
//   - Converting again replaces the group, and a group of one (make_single_group()) undoes it.
int64_t convert_sync_batch_norm(torch::nn::Module& module, const Group& group);

}  // namespace lockstep

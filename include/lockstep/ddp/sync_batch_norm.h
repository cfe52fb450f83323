#pragma once

// SyncBatchNorm: batch normalisation over the batch of all ranks together.
//
// torch::nn::BatchNorm takes mean and variance from the rank's own part of the batch: with few
// samples per rank they are noisy, and W ranks train another model than one process would. Here
// the ranks exchange their statistics, and every rank normalises by those of the whole batch:
//
//   lockstep::SyncBatchNorm norm(torch::nn::BatchNormOptions(64).eps(1e-3), group);
//   auto y = norm(x);                                    // x: (N, 64, ...), N may differ per rank
//
// or, for a model that is written with torch::nn::BatchNorm1d, 2d and 3d already:
//
//   MyResNet model;                                      // its members stay what they are
//   lockstep::convert_sync_batch_norm(*model, group);
//   lockstep::DistributedDataParallel ddp(model, group);
//
// Communication: in training one all-gather of 2 C + 1 numbers in forward and one all-reduce of 2 C
// in backward (if the input needs a gradient); none in eval mode. So in training every rank must
// call forward, and backward, equally often: a rank without samples calls it with an empty batch,
// (0, C, ...). Both are blocking. A group of its own, `group.split(0)`, keeps them from
// waiting behind a bucket that DistributedDataParallel reduces at that moment.
//
// Gradients are those of one BatchNorm over the whole batch: the input's includes what this rank's
// samples change on the others; weight's and bias's are this rank's part of the sum, which
// DistributedDataParallel averages like any other. Not twice differentiable: backward with
// create_graph throws UsageError. Running statistics are the same bits on all ranks.
//
// Types: float32 and float64; float16 and bfloat16 input with float32 statistics. The layout of
// the input (channels last) is kept. CPU tensors.

#include <cstdint>
#include <ostream>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <lockstep/comm/group.h>

namespace lockstep {

// Options, members (weight, bias, running_mean, running_var, num_batches_tracked) and their names
// in a checkpoint are those of torch::nn::BatchNorm1d, 2d and 3d: each loads what the other saved.
//   momentum nullopt         running statistics are the plain average over all batches so far
//   affine false             no weight and bias
//   track_running_stats false  no running statistics: eval mode uses the rank's own batch
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  // `norm_options` may be just the number of channels.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& norm_options, Group group);

  // `input`: (N, C, ...), two dimensions or more; collective in training. Throws UsageError if the
  // shape is wrong, and on every rank if all of them together have one value per channel (its
  // variance is no estimate of anything). An empty batch on all ranks changes no statistics.
  torch::Tensor forward(const torch::Tensor& input);

  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const torch::Tensor& input) override;

 private:
  Group group_;
};
TORCH_MODULE(SyncBatchNorm);

// Makes every torch::nn::BatchNorm1d, 2d and 3d in `module`, itself included, normalise over the
// batch of all ranks of `group` when it trains. Returns how many there are. Not collective.
//
// The modules are not replaced: C++ has no way to exchange the object behind a user's member
// (`torch::nn::BatchNorm2d norm;`), and replace_module() would change only the list of children,
// not what forward() calls. Instead each module's running_mean is marked with the group, and the
// operator that all of them call, aten::batch_norm, looks for the mark. So it works for members,
// Sequential, ModuleList and AnyModule alike; parameters, optimizers and checkpoints made before
// the conversion stay valid. What this means:
//   - The first conversion registers a kernel for aten::batch_norm, for the whole process. It hands
//     every call without a mark, and every call in eval mode, on to libtorch's own.
//   - A module's clone(), reset() or a running_mean that is assigned anew has no mark: convert
//     again. .to(), train(), eval() and loading a checkpoint keep it.
//   - A module without running statistics gets a running_mean for the mark: neither registered nor
//     saved nor used.
//   - libtorch's modules refuse a batch with one value per channel on the calling rank (one row of
//     (N, C)) before the operator is reached. Declare a SyncBatchNorm where that may happen.
//   - Converting again replaces the group; a group of one (make_single_group()) undoes it.
int64_t convert_sync_batch_norm(torch::nn::Module& module, const Group& group);

}  // namespace lockstep

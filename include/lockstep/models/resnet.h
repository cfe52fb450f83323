#pragma once

// ResNet: residual networks for pictures, 18, 34, 50, 101 and 152 layers deep.
//
//   auto config = lockstep::builtin_config("resnet50");
//   lockstep::ResNet model(std::get<lockstep::ResNetOptions>(config.options));
//   auto logits = model(pictures);            // float [batch, 3, height, width] -> [batch, 1000]
//
// torchvision's: the same names, the same numbers. In bottlenecks the stride is at the 3x3
// convolution ("v1.5"). First weights: convolutions normal with variance 2 / (outputs of a kernel),
// BatchNorm 1 and 0, `fc` uniform in +-1/sqrt(inputs).
//
// BatchNorm's statistics are each rank's own, and rank 0's are broadcast before each forward in
// training; convert_sync_batch_norm (lockstep/ddp/sync_batch_norm.h) makes them those of the whole
// batch.
//
// Threads: as torch::nn::Module, one at a time.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <lockstep/models/configured_module.h>

namespace torch::nn {
class BatchNorm2dImpl;
}

namespace lockstep {

namespace models::layers {
class Conv2dImpl;
class LinearImpl;
class ResidualBlock;
}  // namespace models::layers

class ResNetImpl : public ConfiguredModule {
 public:
  // Throws UsageError when an option is out of range.
  explicit ResNetImpl(ResNetOptions options = {});

  // float [batch, 3, height, width] -> logits [batch, num_classes]
  at::Tensor forward(const at::Tensor& pictures_BCHW);

 private:
  std::shared_ptr<models::layers::Conv2dImpl> conv1_;
  std::shared_ptr<torch::nn::BatchNorm2dImpl> bn1_;
  std::vector<std::shared_ptr<models::layers::ResidualBlock>> blocks_;  // of all stages
  std::shared_ptr<models::layers::LinearImpl> fc_;
};
TORCH_MODULE(ResNet);

}  // namespace lockstep

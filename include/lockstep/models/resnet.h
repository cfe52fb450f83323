#pragma once

// ResNet: residual networks for pictures, 18, 34, 50, 101 and 152 layers deep.
//
// Example:
//   auto config = lockstep::builtin_config("resnet50");
//   lockstep::ResNet resnet(std::get<lockstep::ResNetOptions>(config.options));
//   auto logits = resnet(pictures);  // float [batch, 3, height, width] -> [batch, 1000]
//
// The networks are torchvision's, with the same names and the same numbers. In bottlenecks the
// stride is at the 3x3 convolution ("v1.5"). Initial weights of convolutions are normal with
// variance 2 / (outputs of a kernel), BatchNorm is 1 and 0, and `fc` is uniform in
// +-1/sqrt(inputs).
//
// The statistics of BatchNorm are each rank's own, and rank 0's are broadcast before each forward
// in training. convert_sync_batch_norm() (lockstep/ddp/sync_batch_norm.h) makes them those of the
// whole batch.
//
// Threads: one thread at a time, as for torch::nn::Module.

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

  // Turns float pictures [batch, 3, height, width] into logits [batch, num_classes].
  at::Tensor forward(const at::Tensor& pictures_BCHW);

 private:
  std::shared_ptr<models::layers::Conv2dImpl> conv1_;
  std::shared_ptr<torch::nn::BatchNorm2dImpl> bn1_;
  std::vector<std::shared_ptr<models::layers::ResidualBlock>> blocks_;  // of all stages, in order
  std::shared_ptr<models::layers::LinearImpl> fc_;
};
TORCH_MODULE(ResNet);

}  // namespace lockstep

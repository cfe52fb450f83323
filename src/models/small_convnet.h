#pragma once

// A small convolutional network for small pictures: three layers that look and shrink, then a
// decision.

#include <cstdint>

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace lockstep::models {

struct SmallConvnetOptions {
  int64_t picture_size = 32;  // pixels, both ways; a multiple of 8
  int64_t in_channels = 3;
  int64_t channels = 16;  // of the first layer; the second and third have 2 and 3 times as many
  int64_t hidden = 32;    // units between what is seen and the decision
  int64_t num_classes = 2;
  uint64_t seed = 0;  // of the first weights; libtorch's global generator has no say in them
};

// No BatchNorm: its statistics would depend on how the batch is split over the ranks.
class SmallConvnetImpl : public torch::nn::Module {
 public:
  // Throws UsageError when an option is out of range.
  explicit SmallConvnetImpl(SmallConvnetOptions options);

  // float [batch, in_channels, picture_size, picture_size] in [0, 1] -> logits [batch,
  // num_classes].
  at::Tensor forward(const at::Tensor& pictures_BCHW);

 private:
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr}, conv3_{nullptr};
  torch::nn::Linear hidden_{nullptr}, decide_{nullptr};
};
TORCH_MODULE(SmallConvnet);

}  // namespace lockstep::models

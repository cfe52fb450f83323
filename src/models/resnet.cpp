// Shapes: B batch, C channels, H W height and width, V classes; C, H and W change by layer.
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/max_pool2d.h>
#include <fmt/format.h>
#include <torch/nn/modules/batchnorm.h>

#include <lockstep/models/resnet.h>

#include "models/batch_norm.h"
#include "models/init.h"
#include "models/layers.h"

namespace lockstep {
namespace models::layers {

constexpr int64_t kExpansion = 4;  // a bottleneck's output has so many times its width

class ResidualBlock : public torch::nn::Module {
 public:
  struct Shape {
    bool bottleneck;
    int64_t in, width, stride;
    int64_t out() const { return bottleneck ? kExpansion * width : width; }
  };

  explicit ResidualBlock(const Shape& shape) {
    if (shape.bottleneck) {
      add(shape.in, shape.width, 1, 1);
      add(shape.width, shape.width, 3, shape.stride);
      add(shape.width, shape.out(), 1, 1);
    } else {
      add(shape.in, shape.width, 3, shape.stride);
      add(shape.width, shape.width, 3, 1);
    }
    if (shape.stride != 1 || shape.in != shape.out()) {
      const auto downsample = register_module("downsample", std::make_shared<torch::nn::Module>());
      shortcut_conv_ =
          downsample->register_module("0", Conv2d(shape.in, shape.out(), 1, shape.stride));
      shortcut_norm_ = downsample->register_module("1", torch::nn::BatchNorm2d(shape.out()));
    }
  }

  at::Tensor forward(const at::Tensor& x_BCHW) {
    at::Tensor y_BCHW = x_BCHW;
    for (size_t i = 0; i + 1 < convs_.size(); ++i) {
      y_BCHW = batch_norm_relu(*norms_[i], convs_[i](y_BCHW));
    }
    y_BCHW = convs_.back()(y_BCHW);
    const at::Tensor shortcut_BCHW =
        shortcut_conv_ ? batch_norm(*shortcut_norm_, shortcut_conv_(x_BCHW)) : x_BCHW;
    return batch_norm_relu(*norms_.back(), y_BCHW, shortcut_BCHW);
  }

 private:
  void add(int64_t in, int64_t out, int64_t kernel_size, int64_t stride) {
    const size_t number = convs_.size() + 1;
    convs_.push_back(
        register_module(fmt::format("conv{}", number), Conv2d(in, out, kernel_size, stride)));
    norms_.push_back(register_module(fmt::format("bn{}", number), torch::nn::BatchNorm2d(out)));
  }

  std::vector<Conv2d> convs_;
  std::vector<torch::nn::BatchNorm2d> norms_;
  Conv2d shortcut_conv_{nullptr};
  torch::nn::BatchNorm2d shortcut_norm_{nullptr};
};

}  // namespace models::layers

ResNetImpl::ResNetImpl(ResNetOptions options)
    : ConfiguredModule({.architecture = "ResNet", .options = options}) {
  constexpr int64_t kColours = 3;
  conv1_ = register_module(
      "conv1", std::make_shared<models::layers::Conv2dImpl>(kColours, options.width, 7, 2));
  bn1_ = register_module("bn1", std::make_shared<torch::nn::BatchNorm2dImpl>(options.width));
  models::layers::ResidualBlock::Shape shape{.bottleneck = options.bottleneck, .in = options.width};
  for (size_t stage = 0; stage < options.blocks.size(); ++stage) {
    shape.width = options.width << stage;
    std::vector<std::shared_ptr<models::layers::ResidualBlock>> blocks;
    for (int64_t i = 0; i < options.blocks[stage]; ++i) {
      shape.stride = stage > 0 && i == 0 ? 2 : 1;
      blocks.push_back(std::make_shared<models::layers::ResidualBlock>(shape));
      shape.in = shape.out();
    }
    models::layers::register_list(*this, fmt::format("layer{}", stage + 1), blocks);
    blocks_.insert(blocks_.end(), blocks.begin(), blocks.end());
  }
  fc_ = register_module(
      "fc", std::make_shared<models::layers::LinearImpl>(shape.in, options.num_classes));
  if (options.initialise) {
    models::initialise(*this, options.seed);
  }
}

at::Tensor ResNetImpl::forward(const at::Tensor& pictures_BCHW) {
  // GPUs convolve fastest with the channels of a pixel beside each other; all that follows keeps
  // that layout.
  at::Tensor x_BCHW = pictures_BCHW.is_cpu()
                          ? pictures_BCHW
                          : pictures_BCHW.contiguous(at::MemoryFormat::ChannelsLast);
  x_BCHW = models::layers::batch_norm_relu(*bn1_, conv1_->forward(x_BCHW));
  x_BCHW = at::max_pool2d(x_BCHW, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
  for (const auto& block : blocks_) {
    x_BCHW = block->forward(x_BCHW);
  }
  const at::Tensor features_BC = at::adaptive_avg_pool2d(x_BCHW, {1, 1}).flatten(1);
  const at::Tensor logits_BV = fc_->forward(features_BC);
  return logits_BV;
}

}  // namespace lockstep

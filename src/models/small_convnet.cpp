// Shapes: B batch, C channels, H = W height and width, F features, V classes; C, H and W change by
// layer.
#include "models/small_convnet.h"

#include <cmath>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/max_pool2d.h>

#include <lockstep/base/error.h>

namespace lockstep::models {
namespace {

constexpr int64_t kShrink = 8;  // a stride and two poolings, by 2 each

void check(const SmallConvnetOptions& options) {
  if (options.picture_size < kShrink || options.picture_size % kShrink != 0) {
    throw UsageError("small convnet: picture_size is {}, it must be a multiple of {}",
                     options.picture_size, kShrink);
  }
  if (options.in_channels < 1 || options.channels < 1 || options.hidden < 1 ||
      options.num_classes < 1) {
    throw UsageError(
        "small convnet: in_channels {}, channels {}, hidden {} and num_classes {} must be at least "
        "1",
        options.in_channels, options.channels, options.hidden, options.num_classes);
  }
}

// Leaky: a unit of a plain ReLU that is driven negative for every picture never learns again, and
// in so small a network some seeds lose all of a layer that way.
at::Tensor rectify(const at::Tensor& x) {
  return at::leaky_relu(x, 0.1);
}

torch::nn::Conv2d conv3x3(int64_t in, int64_t out, int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).stride(stride).padding(1));
}

// libtorch's own first weights, uniform in +-1/sqrt(inputs), but from a generator of ours: the
// global one may have been used differently in another program or on another rank.
void initialise(torch::nn::Module& module, uint64_t seed) {
  const at::NoGradGuard no_grad;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  double bound = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.dim() > 1) {  // a weight; the bias that follows it gets the same bound
      const int64_t num_inputs = parameter.numel() / parameter.size(0);
      bound = 1.0 / std::sqrt(static_cast<double>(num_inputs));
    }
    parameter.uniform_(-bound, bound, generator);
  }
}

}  // namespace

SmallConvnetImpl::SmallConvnetImpl(SmallConvnetOptions options) {
  check(options);
  const int64_t channels = options.channels;
  const int64_t side = options.picture_size / kShrink;
  conv1_ = register_module("conv1", conv3x3(options.in_channels, channels, 2));
  conv2_ = register_module("conv2", conv3x3(channels, 2 * channels, 1));
  conv3_ = register_module("conv3", conv3x3(2 * channels, 3 * channels, 1));
  hidden_ =
      register_module("hidden", torch::nn::Linear(3 * channels * side * side, options.hidden));
  decide_ = register_module("decide", torch::nn::Linear(options.hidden, options.num_classes));
  initialise(*this, options.seed);
}

at::Tensor SmallConvnetImpl::forward(const at::Tensor& pictures_BCHW) {
  const at::Tensor centred_BCHW = pictures_BCHW * 2 - 1;
  const at::Tensor edges_BCHW = rectify(conv1_(centred_BCHW));
  const at::Tensor parts_BCHW = at::max_pool2d(rectify(conv2_(edges_BCHW)), 2);
  const at::Tensor places_BCHW = at::max_pool2d(rectify(conv3_(parts_BCHW)), 2);
  const at::Tensor features_BF = rectify(hidden_(places_BCHW.flatten(1)));
  const at::Tensor logits_BV = decide_(features_BF);
  return logits_BV;
}

}  // namespace lockstep::models

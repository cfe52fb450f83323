// Shapes: B batch, F features, C channels, H = W height and width, T tokens, D width, N heads, S
// width of a head, V classes; C, H and W change by layer.
#include "bench/ddp/bench_models.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

namespace nn = torch::nn;

constexpr int64_t kBatch = 8;

at::Tensor random_classes(int64_t num_classes, int64_t count, const at::Generator& generator) {
  return at::randint(num_classes, {count}, generator, at::kLong);
}

class Mlp : public BenchModel {
 public:
  Mlp() {
    for (int64_t i = 0; i < kNumLayers; ++i) {
      layers_->push_back(nn::Linear(kWidth, kWidth));
    }
    register_module("layers", layers_);
  }

  at::Tensor forward(const at::Tensor& input_BF) override {
    at::Tensor x_BF = input_BF;
    for (size_t i = 0; i < layers_->size(); ++i) {
      x_BF = layers_[i]->as<nn::Linear>()->forward(i == 0 ? x_BF : at::relu(x_BF));
    }
    return x_BF;
  }

  BenchBatch make_batch(const at::Generator& generator) const override {
    return {.input = at::randn({kBatch, kWidth}, generator, at::kFloat),
            .target = random_classes(kWidth, kBatch, generator)};
  }

 private:
  static constexpr int64_t kNumLayers = 6;
  static constexpr int64_t kWidth = 1024;

  nn::ModuleList layers_;
};

nn::Conv2d conv(int64_t in, int64_t out, int64_t size, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

// Two convolutions and a way past them.
class ResidualBlockImpl : public nn::Module {
 public:
  ResidualBlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1_(conv(in, out, 3, stride)), norm1_(out), conv2_(conv(out, out, 3, 1)), norm2_(out) {
    register_module("conv1", conv1_);
    register_module("norm1", norm1_);
    register_module("conv2", conv2_);
    register_module("norm2", norm2_);
    if (stride != 1 || in != out) {  // the way past must change the shape too
      shortcut_->push_back(conv(in, out, 1, stride));
      shortcut_->push_back(nn::BatchNorm2d(out));
      register_module("shortcut", shortcut_);
    }
  }

  at::Tensor forward(const at::Tensor& x_BCHW) {
    const at::Tensor first_BCHW = at::relu(norm1_(conv1_(x_BCHW)));
    const at::Tensor second_BCHW = norm2_(conv2_(first_BCHW));
    return at::relu(second_BCHW + (shortcut_->is_empty() ? x_BCHW : shortcut_->forward(x_BCHW)));
  }

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d norm1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d norm2_;
  nn::Sequential shortcut_;
};
TORCH_MODULE(ResidualBlock);

// He et al., Deep Residual Learning, 2015: the network of 18 layers.
class ResNet18 : public BenchModel {
 public:
  ResNet18() : conv_(conv(kColours, 64, 7, 2)), norm_(64), head_(512, kNumClasses) {
    register_module("conv", conv_);
    register_module("norm", norm_);
    int64_t in = 64;
    for (const int64_t out : {64, 128, 256, 512}) {
      blocks_->push_back(ResidualBlock(in, out, in == out ? 1 : 2));
      blocks_->push_back(ResidualBlock(out, out, 1));
      in = out;
    }
    register_module("blocks", blocks_);
    register_module("head", head_);
    for (const at::Tensor& parameter : parameters()) {
      if (parameter.dim() == 4) {
        nn::init::kaiming_normal_(parameter, 0, torch::kFanOut, torch::kReLU);
      }
    }
  }

  at::Tensor forward(const at::Tensor& pictures_BCHW) override {
    const at::Tensor edges_BCHW = at::relu(norm_(conv_(pictures_BCHW)));
    const at::Tensor features_BCHW = blocks_->forward(at::max_pool2d(edges_BCHW, 3, 2, 1));
    return head_(at::adaptive_avg_pool2d(features_BCHW, {1, 1}).flatten(1));
  }

  BenchBatch make_batch(const at::Generator& generator) const override {
    return {.input = at::randn({kBatch, kColours, kSide, kSide}, generator, at::kFloat),
            .target = random_classes(kNumClasses, kBatch, generator)};
  }

 private:
  static constexpr int64_t kColours = 3;
  static constexpr int64_t kSide = 64;
  static constexpr int64_t kNumClasses = 1000;

  nn::Conv2d conv_;
  nn::BatchNorm2d norm_;
  nn::Sequential blocks_;
  nn::Linear head_;
};

constexpr int64_t kWidth = 128;
constexpr int64_t kNumHeads = 8;
constexpr int64_t kInnerWidth = 512;

nn::LayerNorm layer_norm() {
  return nn::LayerNorm(nn::LayerNormOptions({kWidth}));
}

// Pre-norm: what a layer adds is computed from normalised input, what it passes on is not touched.
class TransformerLayerImpl : public nn::Module {
 public:
  TransformerLayerImpl()
      : norm1_(layer_norm()),
        qkv_(kWidth, 3 * kWidth),
        attended_(kWidth, kWidth),
        norm2_(layer_norm()),
        inner_(kWidth, kInnerWidth),
        outer_(kInnerWidth, kWidth) {
    register_module("norm1", norm1_);
    register_module("qkv", qkv_);
    register_module("attended", attended_);
    register_module("norm2", norm2_);
    register_module("inner", inner_);
    register_module("outer", outer_);
  }

  at::Tensor forward(const at::Tensor& input_BTD) {
    const at::Tensor x_BTD = input_BTD + attend(norm1_(input_BTD));
    return x_BTD + outer_(at::gelu(inner_(norm2_(x_BTD))));
  }

 private:
  at::Tensor attend(const at::Tensor& x_BTD) {
    const int64_t batch = x_BTD.size(0);
    const int64_t tokens = x_BTD.size(1);
    const auto heads = [&](const at::Tensor& part_BTD) {
      return part_BTD.view({batch, tokens, kNumHeads, kWidth / kNumHeads}).transpose(1, 2);
    };
    const auto qkv_BTD = qkv_(x_BTD).chunk(3, -1);
    const at::Tensor mixed_BNTS = at::scaled_dot_product_attention(
        heads(qkv_BTD[0]), heads(qkv_BTD[1]), heads(qkv_BTD[2]), {}, 0.0, /*is_causal=*/true);
    return attended_(mixed_BNTS.transpose(1, 2).reshape({batch, tokens, kWidth}));
  }

  nn::LayerNorm norm1_;
  nn::Linear qkv_, attended_;
  nn::LayerNorm norm2_;
  nn::Linear inner_, outer_;
};
TORCH_MODULE(TransformerLayer);

class Transformer : public BenchModel {
 public:
  Transformer()
      : embedding_(kNumTokens, kWidth),
        norm_(layer_norm()),
        head_(nn::LinearOptions(kWidth, kNumTokens).bias(false)) {
    register_module("embedding", embedding_);
    for (int64_t i = 0; i < kNumLayers; ++i) {
      layers_->push_back(TransformerLayer());
    }
    register_module("layers", layers_);
    register_module("norm", norm_);
    register_module("head", head_);
  }

  at::Tensor forward(const at::Tensor& tokens_BT) override {
    const at::Tensor x_BTD = layers_->forward(embedding_(tokens_BT));
    return head_(norm_(x_BTD)).flatten(0, 1);
  }

  BenchBatch make_batch(const at::Generator& generator) const override {
    const int64_t count = kBatch * kLength;
    return {.input = random_classes(kNumTokens, count, generator).view({kBatch, kLength}),
            .target = random_classes(kNumTokens, count, generator)};
  }

 private:
  static constexpr int64_t kNumLayers = 4;
  static constexpr int64_t kNumTokens = 3000;
  static constexpr int64_t kLength = 64;

  nn::Embedding embedding_;
  nn::Sequential layers_;
  nn::LayerNorm norm_;
  nn::Linear head_;
};

}  // namespace

std::shared_ptr<BenchModel> make_bench_model(const std::string& name) {
  if (name == "mlp") {
    return std::make_shared<Mlp>();
  }
  if (name == "convnet") {
    return std::make_shared<ResNet18>();
  }
  if (name == "transformer") {
    return std::make_shared<Transformer>();
  }
  throw UsageError("{} is not a model of this benchmark", name);
}

}  // namespace lockstep

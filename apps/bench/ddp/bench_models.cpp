// Shapes: B batch, F features, C channels, H W height and width, T tokens, V classes.
#include "bench/ddp/bench_models.h"

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/base/error.h>
#include <lockstep/models/my_transformer.h>
#include <lockstep/models/resnet.h>

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

class Convnet : public BenchModel {
 public:
  Convnet() { register_module("resnet", resnet_); }

  at::Tensor forward(const at::Tensor& pictures_BCHW) override { return resnet_(pictures_BCHW); }

  BenchBatch make_batch(const at::Generator& generator) const override {
    return {.input = at::randn({kBatch, kColours, kSide, kSide}, generator, at::kFloat),
            .target = random_classes(kNumClasses, kBatch, generator)};
  }

 private:
  static constexpr int64_t kColours = 3;
  static constexpr int64_t kSide = 64;
  static constexpr int64_t kNumClasses = 1000;

  ResNet resnet_{
      ResNetOptions{.blocks = {2, 2, 2, 2}, .bottleneck = false, .num_classes = kNumClasses}};
};

// Without dropout: the variants make the same step, whose gradients are compared.
class Transformer : public BenchModel {
 public:
  Transformer() { register_module("transformer", transformer_); }

  at::Tensor forward(const at::Tensor& tokens_BT) override {
    const at::Tensor logits_BTV = transformer_(tokens_BT);
    return logits_BTV.flatten(0, 1);
  }

  BenchBatch make_batch(const at::Generator& generator) const override {
    const int64_t count = kBatch * kLength;
    return {.input = random_classes(kNumTokens, count, generator).view({kBatch, kLength}),
            .target = random_classes(kNumTokens, count, generator)};
  }

 private:
  static constexpr int64_t kNumTokens = 3000;
  static constexpr int64_t kLength = 64;

  MyTransformer transformer_{MyTransformerOptions{.vocab_size = kNumTokens,
                                                  .hidden_size = 128,
                                                  .num_layers = 4,
                                                  .num_heads = 8,
                                                  .ffn_size = 512,
                                                  .max_positions = 0,
                                                  .dropout = 0}};
};

}  // namespace

std::shared_ptr<BenchModel> make_bench_model(const std::string& name) {
  if (name == "mlp") {
    return std::make_shared<Mlp>();
  }
  if (name == "convnet") {
    return std::make_shared<Convnet>();
  }
  if (name == "transformer") {
    return std::make_shared<Transformer>();
  }
  throw UsageError("{} is not a model of this benchmark", name);
}

}  // namespace lockstep

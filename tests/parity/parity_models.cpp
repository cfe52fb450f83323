// Shapes: B batch, C channels, H = W height and width, T length, D width, N heads, E width of a
// head, V classes or vocabulary.
#include "parity/parity_models.h"

#include <torch/torch.h>

#include <lockstep/base/error.h>

namespace lockstep::parity {
namespace {

namespace nn = torch::nn;

constexpr int64_t kNumSamples = 60;
constexpr int64_t kNumClasses = 5;
constexpr int64_t kVocabulary = 29;
constexpr int64_t kLength = 8;
constexpr int64_t kWidth = 16;
constexpr int64_t kHeads = 2;
constexpr int kLayers = 2;
constexpr uint32_t kInputSalt = 1001;
constexpr uint32_t kTargetSalt = 1002;

// ---- numbers from integers

uint32_t hashed(uint32_t place, uint32_t salt) {
  uint32_t x = place + salt * 1000003u;
  x = x * 747796405u + 2891336453u;
  x = (x ^ (x >> 15)) * 739982445u;
  x = (x ^ (x >> 13)) * 695872825u;
  return x ^ (x >> 16);
}

at::Tensor hashed_below(int64_t limit, at::IntArrayRef shape, uint32_t salt) {
  at::Tensor result = torch::empty(shape, torch::kLong);
  for (int64_t i = 0; i < result.numel(); ++i) {
    result.data_ptr<int64_t>()[i] = hashed(static_cast<uint32_t>(i), salt) % limit;
  }
  return result;
}

// Numbers in [-1, 1), all exact in float32.
at::Tensor uniform(at::IntArrayRef shape, uint32_t salt) {
  at::Tensor result = torch::empty(shape, torch::kDouble);
  for (int64_t i = 0; i < result.numel(); ++i) {
    result.data_ptr<double>()[i] = (hashed(static_cast<uint32_t>(i), salt) >> 8) / 0x1p23 - 1;
  }
  return result;
}

void initialise(nn::Module& module) {
  const torch::NoGradGuard no_grad;
  uint32_t salt = 0;
  for (const auto& item : module.named_parameters()) {
    at::Tensor parameter = item.value();
    const at::Tensor value = uniform(parameter.sizes(), salt++);
    if (parameter.dim() > 1) {  // a weight: within the power of two below 1 / sqrt(inputs)
      double bound = 1;
      while (bound * bound * static_cast<double>(parameter.numel() / parameter.size(0)) > 1) {
        bound /= 2;
      }
      parameter.copy_(value * bound);
    } else {
      const bool is_bias = item.key().ends_with("bias");  // else a norm's weight
      parameter.copy_(value / 8 + (is_bias ? 0 : 1));
    }
  }
}

// ---- the models

class Mlp : public Model {
 public:
  Mlp() {
    first_ = register_module("first", nn::Linear(12, 32));
    second_ = register_module("second", nn::Linear(32, 32));
    third_ = register_module("third", nn::Linear(32, kNumClasses));
  }
  at::Tensor forward(const at::Tensor& x) override {
    return third_(torch::tanh(second_(torch::relu(first_(x)))));
  }

 private:
  nn::Linear first_{nullptr}, second_{nullptr}, third_{nullptr};
};

class Convnet : public Model {
 public:
  Convnet() {
    conv1_ = register_module("conv1", nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)));
    norm1_ = register_module("norm1", nn::BatchNorm2d(8));
    conv2_ =
        register_module("conv2", nn::Conv2d(nn::Conv2dOptions(8, 16, 3).padding(1).bias(false)));
    norm2_ = register_module("norm2", nn::BatchNorm2d(16));
    decide_ = register_module("decide", nn::Linear(16, kNumClasses));
  }
  at::Tensor forward(const at::Tensor& pictures_BCHW) override {
    const at::Tensor edges_BCHW = torch::max_pool2d(torch::relu(norm1_(conv1_(pictures_BCHW))), 2);
    const at::Tensor parts_BCHW = torch::relu(norm2_(conv2_(edges_BCHW)));
    return decide_(parts_BCHW.mean({2, 3}));
  }

 private:
  nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  nn::BatchNorm2d norm1_{nullptr}, norm2_{nullptr};
  nn::Linear decide_{nullptr};
};

// Python's nn.Linear: the C++ module adds the bias of a 3-dimensional input in a pass of its own,
// which rounds otherwise.
at::Tensor through(const nn::Linear& linear, const at::Tensor& x) {
  return torch::linear(x, linear->weight, linear->bias);
}

class Block : public nn::Module {
 public:
  Block() {
    norm1_ = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    attend_ =
        register_module("attend", nn::Linear(nn::LinearOptions(kWidth, 3 * kWidth).bias(false)));
    project_ = register_module("project", nn::Linear(kWidth, kWidth));
    norm2_ = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    widen_ = register_module("widen", nn::Linear(kWidth, 4 * kWidth));
    narrow_ = register_module("narrow", nn::Linear(4 * kWidth, kWidth));
  }
  at::Tensor forward(const at::Tensor& x_BTD) {
    const int64_t batch = x_BTD.size(0);
    std::vector<at::Tensor> parts_BNTE;  // queries, keys, values
    for (const at::Tensor& part_BTD : through(attend_, norm1_(x_BTD)).chunk(3, 2)) {
      parts_BNTE.push_back(
          part_BTD.view({batch, kLength, kHeads, kWidth / kHeads}).transpose(1, 2));
    }
    const at::Tensor seen_BNTE = torch::scaled_dot_product_attention(
        parts_BNTE[0], parts_BNTE[1], parts_BNTE[2], {}, 0.0, /*is_causal=*/true);
    const at::Tensor y_BTD =
        x_BTD + through(project_, seen_BNTE.transpose(1, 2).reshape({batch, kLength, kWidth}));
    return y_BTD + through(narrow_, torch::gelu(through(widen_, norm2_(y_BTD))));
  }

 private:
  nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  nn::Linear attend_{nullptr}, project_{nullptr}, widen_{nullptr}, narrow_{nullptr};
};

class Transformer : public Model {
 public:
  Transformer() {
    token_ = register_module("token", nn::Embedding(kVocabulary, kWidth));
    place_ = register_module("place", nn::Embedding(kLength, kWidth));
    blocks_ = register_module("blocks", nn::ModuleList());
    for (int i = 0; i < kLayers; ++i) {
      blocks_->push_back(std::make_shared<Block>());
    }
    norm_ = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    head_ = register_module("head", nn::Linear(kWidth, kVocabulary));
  }
  at::Tensor forward(const at::Tensor& tokens_BT) override {
    at::Tensor x_BTD = token_(tokens_BT) + place_(torch::arange(kLength));
    for (const auto& block : *blocks_) {
      x_BTD = block->as<Block>()->forward(x_BTD);
    }
    return through(head_, norm_(x_BTD)).flatten(0, 1);
  }

 private:
  nn::Embedding token_{nullptr}, place_{nullptr};
  nn::ModuleList blocks_{nullptr};
  nn::LayerNorm norm_{nullptr};
  nn::Linear head_{nullptr};
};

std::shared_ptr<Model> bare_model(const std::string& name) {
  if (name == "mlp") {
    return std::make_shared<Mlp>();
  }
  if (name == "convnet") {
    return std::make_shared<Convnet>();
  }
  LOCKSTEP_CHECK(name == "transformer", "no model is named {}", name);
  return std::make_shared<Transformer>();
}

}  // namespace

std::shared_ptr<Model> make_model(const std::string& name, at::ScalarType dtype) {
  auto model = bare_model(name);
  initialise(*model);
  // Not Module::to(dtype), which in C++ makes a float of BatchNorm's count of batches too.
  for (at::Tensor& parameter : model->parameters()) {
    parameter.set_data(parameter.to(dtype));
  }
  for (at::Tensor& buffer : model->buffers()) {
    if (buffer.is_floating_point()) {
      buffer.set_data(buffer.to(dtype));
    }
  }
  return model;
}

TensorDataset make_dataset(const std::string& name, at::ScalarType dtype) {
  if (name == "transformer") {
    const at::Tensor tokens = hashed_below(kVocabulary, {kNumSamples, kLength + 1}, kInputSalt);
    return {tokens.narrow(1, 0, kLength).contiguous(), tokens.narrow(1, 1, kLength).contiguous()};
  }
  const at::Tensor input = name == "mlp" ? uniform({kNumSamples, 12}, kInputSalt)
                                         : uniform({kNumSamples, 3, 8, 8}, kInputSalt);
  return {input.to(dtype), hashed_below(kNumClasses, {kNumSamples}, kTargetSalt)};
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        std::vector<at::Tensor> parameters) {
  if (name == "transformer") {
    return std::make_unique<torch::optim::AdamW>(
        std::move(parameters), torch::optim::AdamWOptions(1e-3).weight_decay(1e-2));
  }
  const double decay = name == "convnet" ? 1e-3 : 0;
  return std::make_unique<torch::optim::SGD>(
      std::move(parameters), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(decay));
}

}  // namespace lockstep::parity

#include "fused_models.h"

#include <cmath>
#include <functional>
#include <memory>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <lockstep/models/bert.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/loss.h>
#include <lockstep/models/my_transformer.h>
#include <lockstep/models/resnet.h>

namespace lockstep::testing_support {
namespace {

constexpr int64_t kWords = 101;  // not whole tiles
constexpr int64_t kTime = 9;
constexpr int64_t kBatch = 3;

// The rule of Trainer for 16 bits.
class InBfloat16 {
 public:
  InBfloat16(bool is_on, at::DeviceType device) : is_on_(is_on), device_(device) {
    if (is_on_) {
      at::autocast::set_autocast_enabled(device_, true);
      at::autocast::set_autocast_dtype(device_, at::kBFloat16);
      at::autocast::increment_nesting();
    }
  }
  ~InBfloat16() {
    if (is_on_) {
      at::autocast::decrement_nesting();
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(device_, false);
    }
  }
  InBfloat16(const InBfloat16&) = delete;
  InBfloat16& operator=(const InBfloat16&) = delete;

 private:
  bool is_on_;
  at::DeviceType device_;
};

struct Made {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor()> loss;
};

at::Tensor ids_on(at::Device device) {
  const at::Tensor place = at::arange(kBatch * kTime, at::kLong).reshape({kBatch, kTime});
  return (place * place * 7 + place * 3).remainder(kWords).to(device);
}

Made gpt2(Activation activation, const StepOptions& options) {
  const GPT2 model(GPT2Options{.vocab_size = kWords,
                               .hidden_size = 24,
                               .num_layers = 2,
                               .num_heads = 3,
                               .ffn_size = 56,
                               .max_positions = 13,
                               .activation = activation,
                               .embedding_dropout = options.dropout,
                               .attention_dropout = 0,
                               .residual_dropout = options.dropout});
  const at::Tensor ids = ids_on(options.device);
  return {model.ptr(),
          [net = model.ptr(), ids] { return next_token_loss(net->forward(ids), ids); }};
}

Made my_transformer(int64_t max_positions, const StepOptions& options) {
  const MyTransformer model(MyTransformerOptions{.vocab_size = kWords,
                                                 .hidden_size = 24,
                                                 .num_layers = 2,
                                                 .num_heads = 3,
                                                 .ffn_size = 56,
                                                 .max_positions = max_positions,
                                                 .dropout = options.dropout});
  const at::Tensor ids = ids_on(options.device);
  return {model.ptr(), [net = model.ptr(), ids] {
            at::Tensor labels = ids.clone();
            labels.select(0, 1).slice(0, 2, 5).fill_(kIgnoredLabel);
            return next_token_loss(net->forward(ids), labels);
          }};
}

BertOptions small_bert(const StepOptions& options) {
  return {.vocab_size = kWords,
          .hidden_size = 24,
          .num_layers = 2,
          .num_heads = 3,
          .ffn_size = 56,
          .max_positions = 13,
          .num_labels = 4,
          .hidden_dropout = options.dropout,
          .attention_dropout = 0,
          .classifier_dropout = 0};
}

// The last sequence has padding, and all have two kinds of tokens.
BertInput bert_input(at::Device device) {
  at::Tensor ids = ids_on(device);
  at::Tensor mask = at::ones_like(ids);
  ids.select(0, 2).slice(0, 6).fill_(0);
  mask.select(0, 2).slice(0, 6).fill_(0);
  return {
      .ids_BT = ids,
      .attention_mask_BT = mask,
      .token_types_BT = at::arange(kTime, ids.options()).ge(4).to(at::kLong).repeat({kBatch, 1})};
}

Made bert(bool masked, const StepOptions& options) {
  const BertInput input = bert_input(options.device);
  if (!masked) {
    const BertForSequenceClassification model(small_bert(options));
    const at::Tensor labels = at::tensor({3, 0, 2}, at::kLong).to(options.device);
    return {model.ptr(), [net = model.ptr(), input, labels] {
              return at::cross_entropy_loss(net->forward(input).to(at::kFloat), labels);
            }};
  }
  const BertForMaskedLM model(small_bert(options));
  at::Tensor labels = ids_on(options.device).roll(2, 1);
  labels.masked_fill_(labels.remainder(3).eq(0), kIgnoredLabel);
  return {model.ptr(), [net = model.ptr(), input, labels] {
            return masked_token_loss(net->forward(input), labels);
          }};
}

Made resnet(bool bottleneck, const StepOptions& options) {
  const ResNet model(ResNetOptions{
      .blocks = {1, 2, 1, 1}, .bottleneck = bottleneck, .width = 4, .num_classes = 5});
  const at::Tensor place = at::arange(4 * 3 * 47 * 40, at::kDouble);
  const at::Tensor pictures = ((place * 0.013).sin() + (place * place * 1.7e-3).sin())
                                  .to(at::kFloat)
                                  .reshape({4, 3, 47, 40})
                                  .to(options.device);
  const at::Tensor labels = at::tensor({3, 0, 4, 2}, at::kLong).to(options.device);
  return {model.ptr(), [net = model.ptr(), pictures, labels] {
            return at::cross_entropy_loss(net->forward(pictures).to(at::kFloat), labels);
          }};
}

Made make(const std::string& model, const StepOptions& options) {
  if (model == "gpt2" || model == "gpt2_erf") {
    return gpt2(model == "gpt2" ? Activation::GeluTanh : Activation::Gelu, options);
  }
  if (model == "mytransformer" || model == "mytransformer_without_positions") {
    return my_transformer(model == "mytransformer" ? 13 : 0, options);
  }
  return model.starts_with("bert") ? bert(model == "bert_masked", options)
                                   : resnet(model == "resnet_bottleneck", options);
}

at::Tensor on_cpu(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

// First weights leave norms' weights 1 and biases 0, where half of the mistakes do not show.
void shake(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  double shift = 0;
  for (const auto& item : module.named_parameters()) {
    shift += 1;
    const at::Tensor wave = (at::arange(item.value().numel(), at::kDouble) * 0.7 + shift).sin();
    item.value().add_(wave.mul(0.05).reshape(item.value().sizes()).to(at::kFloat));
  }
}

}  // namespace

StepResult take_step(const std::string& model, const StepOptions& options) {
  const device::UseFunctions use(options.use);
  const Made made = make(model, options);
  shake(*made.module);
  made.module->to(options.device);
  at::Generator generator = at::globalContext().defaultGenerator(options.device);
  generator.set_current_seed(static_cast<uint64_t>(options.seed));
  at::Tensor loss;
  {
    const InBfloat16 autocast(options.bfloat16, options.device.type());
    loss = made.loss();
  }
  (loss * 1.5).backward();
  StepResult result;
  result.loss = loss.item<double>();
  const at::NoGradGuard no_grad;
  for (const auto& item : made.module->named_parameters()) {
    const at::Tensor& parameter = item.value();
    EXPECT_TRUE(parameter.grad().defined()) << model << " " << item.key();
    EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat) << model << " " << item.key();
    result.gradients[item.key()] = on_cpu(parameter.grad());
    parameter.sub_(parameter.grad(), 0.1);
    result.parameters[item.key()] = on_cpu(parameter);
  }
  for (const auto& item : made.module->named_buffers()) {
    result.buffers[item.key()] = on_cpu(item.value());
  }
  return result;
}

StepDifference difference_of(const StepResult& one, const StepResult& other) {
  StepDifference result;
  result.loss = std::abs(one.loss - other.loss);
  const auto worst = [&](const auto& tensors, const auto& others) {
    EXPECT_EQ(tensors.size(), others.size());
    double most = 0;
    for (const auto& [name, tensor] : tensors) {
      // A gradient that is 0 but for rounding, such as an attention's key bias, is held against 1.
      const double size = std::max(others.at(name).abs().max().template item<double>(), 1e-2);
      const double away = (tensor - others.at(name)).abs().max().template item<double>() / size;
      EXPECT_FALSE(std::isnan(away)) << name;
      if (away > most) {
        most = away;
        result.where = name;
      }
    }
    return most;
  };
  result.parameter = worst(one.parameters, other.parameters);
  result.buffer = worst(one.buffers, other.buffers);
  result.gradient = worst(one.gradients, other.gradients);
  return result;
}

}  // namespace lockstep::testing_support

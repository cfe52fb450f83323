#pragma once

// A net for points.h, and its task.

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/train/trainer.h>

namespace lockstep::test {

// All that makes a resume hard: dropout, BatchNorm.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(6, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    dropout = register_module("dropout", torch::nn::Dropout(0.3));
    last = register_module("last", torch::nn::Linear(16, 3));
    int number = 0;
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) {
      if (parameter.dim() >= 2) {
        parameter.copy_(at::arange(parameter.numel(), at::kFloat)
                            .mul(0.7 + number++)
                            .sin()
                            .mul(0.3)
                            .reshape(parameter.sizes()));
      } else if (parameter.numel() == 3) {
        parameter.zero_();
      }
    }
    first->bias.zero_();
  }
  at::Tensor forward(const at::Tensor& x) { return last(dropout(norm(first(x)).relu())); }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Net);

class NetTask : public TrainingTask {
 public:
  std::shared_ptr<torch::nn::Module> module() const override { return net_.ptr(); }
  TaskOutput forward(const Batch& batch) override {
    return classify(net_(batch.input), batch.target);
  }

 private:
  Net net_;
};

}  // namespace lockstep::test

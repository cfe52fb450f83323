#pragma once

// The models, data and optimizers of golden/make_ddp.py, once more.

#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <lockstep/data/batches.h>

namespace lockstep::parity {

// A module with one tensor in and one out.
class Model : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};

// `name` is mlp, convnet or transformer. With the first weights.
std::shared_ptr<Model> make_model(const std::string& name, at::ScalarType dtype);
TensorDataset make_dataset(const std::string& name, at::ScalarType dtype);
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        std::vector<at::Tensor> parameters);

}  // namespace lockstep::parity

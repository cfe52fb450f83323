#pragma once

// The update of a step: AdamW, SGD and Lion over all parameters at once.
//
// AdamW and SGD are libtorch's fused kernels: one pass over memory, where torch::optim makes one
// for each of a dozen operations. Lion (Chen et al. 2023, "Symbolic Discovery of Optimization
// Algorithms") is written with the multi-tensor operations.

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/train/trainer.h>
#include <lockstep/weights/save.h>

namespace torch::nn {
class Module;
}

namespace lockstep::train {

// Parameters of two or more dimensions are decayed, vectors (biases, norms) are not. One that
// requires no gradient is left alone.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Uses the gradients in the parameters' grad(); one without a gradient is not changed.
  virtual void step(double lr) = 0;

  // Returns its memory under the parameters' names: the same tensors from start to end, so
  // that a checkpoint can be read into them.
  virtual std::vector<NamedTensor> state() const = 0;

  void zero_grad();
  void scale_gradients(double factor);

 protected:
  struct Decayed {  // parameters with one weight decay
    double weight_decay = 0;
    std::vector<std::string> names;
    std::vector<at::Tensor> parameters;
  };
  explicit Optimizer(const torch::nn::Module& module, double weight_decay);
  std::vector<Decayed> groups_;
};

std::unique_ptr<Optimizer> make_optimizer(const torch::nn::Module& module,
                                          const TrainerOptions& options);

}  // namespace lockstep::train

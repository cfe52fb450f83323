#pragma once

// An exponential moving average of a model's parameters (Polyak averaging): often better on
// held-out data than the parameters of any one step.

#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/weights/save.h>

namespace torch::nn {
class Module;
}

namespace lockstep::train {

class ParameterAverage {
 public:
  // decay 0: nothing is kept and every call does nothing.
  ParameterAverage(const torch::nn::Module& module, double decay);

  void update();  // after a step
  std::vector<NamedTensor> state() const;

  // While it lives, the module holds the average and the average its parameters.
  class Swap {
   public:
    explicit Swap(ParameterAverage& average) : average_(average) { average_.swap(); }
    ~Swap() { average_.swap_back(); }
    Swap(const Swap&) = delete;
    Swap& operator=(const Swap&) = delete;

   private:
    ParameterAverage& average_;
  };

 private:
  void swap();
  void swap_back() noexcept;  // logs what it could not do

  double decay_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> averages_;
  at::Tensor between_;  // bytes, as many as the largest: a swap asks for no memory
};

}  // namespace lockstep::train

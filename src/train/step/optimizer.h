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

#include "train/step/parameter_groups.h"

namespace lockstep::train {

// Threads: the trainer's.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Uses the gradients in the parameters' grad(); one without a gradient is not changed. `lr` is
  // what the schedule says.
  virtual void step(double lr) = 0;

  // The same for work that is recorded once and replayed with other numbers: these are tensors of
  // no dimension on the parameters' device. Only where can_be_recorded() says so.
  struct Recorded {
    std::vector<at::Tensor> lrs;  // float32: group_lrs()
    at::Tensor skips;             // float32: 1 changes nothing, 0 steps
  };
  virtual bool can_be_recorded() const { return false; }
  virtual void record_step(const Recorded& numbers);

  // The learning rate of each group in a step with `lr`. On a device it is rounded to the float32
  // that a recorded step has, so that both have the same bits.
  std::vector<double> group_lrs(double lr) const;

  // The learning rate that a step with `lr` is reported to have.
  virtual double shown_lr(double lr) const { return lr; }

  // Returns its memory under the parameters' names, as it is until the next step.
  virtual std::vector<NamedTensor> state() const = 0;

  // Returns the same for a checkpoint to be read into, and makes it count once it has been read.
  virtual std::vector<NamedTensor> begin_restore() { return state(); }
  virtual void end_restore() {}

  // What kind it is, and the group of each parameter where there are groups: two that can go on
  // from each other's state have equal lines.
  virtual std::vector<std::string> description() const = 0;

  void zero_grad();
  void scale_gradients(double factor);
  void scale_gradients(const at::Tensor& factor);  // a number on the parameters' device

  // The gradients of all parameters, undefined where there is none, and those in their places.
  std::vector<at::Tensor> gradients() const;
  void use_gradients(const std::vector<at::Tensor>& gradients);

 protected:
  // The groups hold all parameters that are trained.
  explicit Optimizer(std::vector<UpdateGroup> groups) : groups_(std::move(groups)) {}
  at::Device device() const;  // of the parameters
  std::vector<UpdateGroup> groups_;

 private:
  std::vector<at::Tensor> defined_gradients() const;
};

// Throws UsageError if there is nothing to train.
std::unique_ptr<Optimizer> make_optimizer(const AssignedParameters& parameters,
                                          const TrainerOptions& options);

}  // namespace lockstep::train

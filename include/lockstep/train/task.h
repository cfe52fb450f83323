#pragma once

// TrainingTask: what Trainer trains, a model and its loss.
//
// Example:
//   class Digits : public lockstep::TrainingTask {
//    public:
//     std::shared_ptr<torch::nn::Module> module() const override { return net_.ptr(); }
//     lockstep::TaskOutput forward(const lockstep::Batch& batch) override {
//       auto loss = torch::nll_loss(net_(batch.input), batch.target, weights_);
//       return {.loss = loss, .num_counted = batch.target.size(0)};
//     }
//     void move_to(torch::Device device) override {
//       TrainingTask::move_to(device);
//       weights_ = weights_.to(device);  // a tensor that the module does not know
//     }
//
//    private:
//     MyModel net_;
//     torch::Tensor weights_ = torch::ones({10});
//   };

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>

#include <lockstep/data/batch.h>

namespace torch::nn {
class Module;
}

namespace lockstep {

// A number of samples or tokens. What a GPU has counted stays there, as a tensor of one number,
// until it is reported: to read it sooner would hold up the step.
class Count {
 public:
  Count(int64_t number = -1) : number_(number) {}
  Count(at::Tensor counted) : counted_(std::move(counted)) {}

  bool is_on_device() const { return counted_.defined(); }
  const at::Tensor& tensor() const { return counted_; }

  // The number. Waits for the device that counts it.
  int64_t value() const;

 private:
  int64_t number_ = -1;
  at::Tensor counted_;  // undefined: `number_` counts
};

// What a task computes from one batch.
struct TaskOutput {
  at::Tensor loss;    // a scalar: the mean over what counts
  Count num_counted;  // the samples or tokens in that mean; -1: the samples of the batch
  Count num_correct;  // how many of these are correct; -1 if that was not counted
  // If given, it is called after the step if the gradient was not finite, and throws what is wrong
  // with this batch, if anything is. A task on a GPU can look at its data there: looking in
  // forward() would hold up every step. All ranks call theirs, and all throw if one does.
  std::function<void()> find_fault = {};
};

// A model and its loss. The trainer's thread calls all functions.
class TrainingTask {
 public:
  virtual ~TrainingTask() = default;
  virtual std::shared_ptr<torch::nn::Module> module() const = 0;
  // Serves training and evaluation; module()->is_training() tells which. The batch is on the device
  // of the module. What it throws comes out of Trainer::run(), so it should throw on all ranks or
  // on none.
  virtual TaskOutput forward(const Batch& batch) = 0;
  // Moves the module. A task with tensors of its own moves these too. The trainer calls it once,
  // before anything else.
  virtual void move_to(at::Device device);
};

// Returns the cross entropy of logits [batch, classes] and int64 targets [batch]. Targets of
// kCorruptTarget, for samples that could not be read, do not count. Any other label that is not in
// [0, classes) is a UsageError: at once on the CPU; on a GPU the loss becomes NaN, so that the step
// changes nothing, and find_fault throws.
TaskOutput classify(const at::Tensor& logits_BV, const at::Tensor& target_B,
                    double label_smoothing = 0);

}  // namespace lockstep

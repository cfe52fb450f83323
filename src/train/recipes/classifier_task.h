#pragma once

// The task of every recipe that tells classes apart.

#include <functional>
#include <memory>
#include <utility>

#include <torch/nn/module.h>

#include <lockstep/train/trainer.h>

namespace lockstep::train {

class ClassifierTask : public TrainingTask {
 public:
  using Logits = std::function<at::Tensor(const Batch& batch)>;  // -> [batch, classes]

  // Labels are smoothed in training alone.
  ClassifierTask(std::shared_ptr<torch::nn::Module> module, Logits logits, double label_smoothing)
      : module_(std::move(module)), logits_(std::move(logits)), label_smoothing_(label_smoothing) {}

  std::shared_ptr<torch::nn::Module> module() const override { return module_; }

  TaskOutput forward(const Batch& batch) override {
    return classify(logits_(batch), batch.target, module_->is_training() ? label_smoothing_ : 0);
  }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  Logits logits_;
  double label_smoothing_;
};

}  // namespace lockstep::train

#pragma once

// One small model of every kind, with data that it can learn, for runs on different devices.

#include <memory>
#include <string>
#include <vector>

#include <lockstep/train/trainer.h>

namespace lockstep::test {

struct SmallRun {
  std::unique_ptr<TrainingTask> task;
  TrainerData data;
};

// mlp, convnet, mytransformer, bert, resnet: drawn on the CPU, the same every time. `dropout` is of
// the three that have some: mlp, mytransformer, bert.
SmallRun make_small_run(const std::string& model, double dropout = 0);

// What a run came to.
struct Trained {
  std::vector<double> losses;  // of every step
  TrainResult result;
  at::Device device = at::kCPU;

  // Parameters, steps and the evaluation, bit for bit.
  std::string state() const;
};
Trained train_small(const std::string& model, const TrainerOptions& options,
                    Group group = make_single_group(), double dropout = 0);

// SGD at 0.01 without clipping, 8 steps an epoch with batches of 8, on that device.
TrainerOptions small_options(TrainDevice device, int64_t epochs = 3);

// The largest relative difference.
double largest_difference(const std::vector<double>& found, const std::vector<double>& expected);

}  // namespace lockstep::test

#pragma once

// One step of training: its pieces forward and backward, the average of their gradients, the
// update.

#include <functional>
#include <memory>
#include <vector>

#include <lockstep/data/batches.h>
#include <lockstep/ddp/reducer.h>
#include <lockstep/train/trainer.h>

#include "train/data_order.h"
#include "train/step/average.h"
#include "train/step/bad_steps.h"
#include "train/step/optimizer.h"
#include "train/step/precision.h"
#include "train/tally.h"

namespace lockstep::train {

// What all ranks have seen since the last call of take_sums().
struct SeenSums {
  double loss = 0;  // mean of the pieces' losses
  int64_t num_counted = 0;
  int64_t num_correct = -1;  // -1: not counted
};

class StepRunner {
 public:
  // Collective: rank 0's parameters and buffers go to all ranks.
  // The module is on the device already.
  struct Setting {
    TrainerOptions options;
    Pieces pieces;
    at::Device device = at::kCPU;
  };
  StepRunner(TrainingTask& task, Group group, const Setting& setting);

  struct Inputs {
    int64_t step = 0;
    double lr = 0;
    std::function<Batch()> next_batch;         // called once per local piece
    std::function<void()> fetch_ahead = {};    // called when a piece's work is queued
    std::function<void()> before_update = {};  // parameters change when it returns
  };
  // Collective. Returns the norm of all gradients, before clipping: on a GPU, the only number that
  // a step waits for.
  double run(const Inputs& inputs);

  // Collective. Sums in the order of the pieces, so the bits do not depend on the number of ranks.
  SeenSums take_sums();

  // Collective. Gives all ranks rank 0's buffers.
  void share_buffers();

  Optimizer& optimizer() { return *optimizer_; }
  ParameterAverage& average() { return average_; }
  BadSteps& bad_steps() { return bad_steps_; }
  LossScale& loss_scale() { return loss_scale_; }

 private:
  double take_step(const Inputs& inputs);
  void run_pieces(const Inputs& inputs);
  void run_piece(int local, const Inputs& inputs);
  void find_faults();

  TrainingTask& task_;
  std::shared_ptr<torch::nn::Module> module_;
  Group group_;
  TrainerOptions options_;
  Pieces pieces_;
  at::Device device_;
  bool in_tree_;  // pieces are the reducer's shards; else they add up under no_sync()
  std::vector<at::Tensor> buffers_;
  AssignedParameters parameters_;
  Reducer reducer_;
  std::unique_ptr<Optimizer> optimizer_;
  ParameterAverage average_;
  BadSteps bad_steps_;
  LossScale loss_scale_;
  Tally seen_;                                      // a row for every piece
  std::vector<std::function<void()>> find_faults_;  // of this step's pieces, where they have one
  int64_t num_seen_steps_ = 0;
};

}  // namespace lockstep::train

#pragma once

// One step of training: its pieces forward and backward, the average of their gradients, the
// update.

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <lockstep/data/batches.h>
#include <lockstep/ddp/reducer.h>
#include <lockstep/train/trainer.h>

#include "train/data_order.h"
#include "train/step/average.h"
#include "train/step/bad_steps.h"
#include "train/step/graphed_step.h"
#include "train/step/optimizer.h"
#include "train/step/precision.h"
#include "train/step/step_numbers.h"
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
    std::shared_ptr<device::Graphs> graphs = {};  // null: operations are queued one by one
  };
  StepRunner(TrainingTask& task, Group group, const Setting& setting);

  struct Inputs {
    int64_t step = 0;
    double lr = 0;
    std::function<Batch()> next_batch;         // called once per local piece
    std::function<void()> fetch_ahead = {};    // called when a piece's work is queued
    std::function<void()> before_update = {};  // parameters change when it returns
    device::Recorder* recorder = nullptr;      // of the step that is being recorded
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
  // What a recorded step does not do by itself when it is replayed.
  struct Recorded {
    at::Tensor known;                                // what the host adds to the tally
    std::vector<std::function<void()>> find_faults;  // of tensors that a replay writes
    std::vector<at::Tensor> gradients;               // if the update is not in the graph
  };

  double take_eager_step(const Inputs& inputs);
  bool accept(int64_t step, double grad_norm);
  uint64_t seed_of(int64_t step, int piece) const;
  at::Tensor scaled(const at::Tensor& loss, const Inputs& inputs) const;
  void run_pieces(const Inputs& inputs);
  void run_piece(int local, const Inputs& inputs);
  void find_faults();

  // step_graph.cpp
  void use_graphs(std::shared_ptr<device::Graphs> graphs);
  double take_graphed_step(const Inputs& inputs);
  bool record_step(const Inputs& inputs, const std::vector<Batch>& batches);
  void queue_step(const Inputs& recording);
  double replay_step(const Inputs& inputs, const std::vector<Batch>& batches);

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
  std::optional<GraphedStep> graphed_;  // none: all steps are eager
  std::optional<StepNumbers> numbers_;
  Recorded recorded_;
};

}  // namespace lockstep::train

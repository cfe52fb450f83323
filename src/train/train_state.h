#pragma once

// All that a run is made of, as a checkpoint holds it.
//
// Tensors: "model.NAME" (parameters and buffers), "optimizer.WHAT.NAME", "average.NAME". Values:
// counters and the description of the run. Random numbers and the data's order need no state: they
// follow from the options' seed, the step and the epoch.

#include <map>
#include <string>
#include <vector>

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/train/trainer.h>
#include <lockstep/weights/save.h>

namespace torch::nn {
class Module;
}

namespace lockstep::train {

class BadSteps;
class LossScale;
class Optimizer;
class ParameterAverage;

// How well it went so far.
struct Progress {
  int64_t step = 0;
  int shards = 0;
  int threads = 0;             // per rank
  std::string device = "cpu";  // its kind: see kind_of()
  std::optional<Evaluation> best;
  int64_t num_stale = 0;  // evaluations since then
};

// References to the parts of a run.
struct TrainState {
  torch::nn::Module& module;
  Optimizer& optimizer;
  ParameterAverage& average;
  BadSteps& bad_steps;
  LossScale& loss_scale;
  Progress& progress;

  // Parameters and optimizer state as they lie in memory: they stay as they are until the next
  // step. Buffers as copies: the next forward changes them.
  std::vector<NamedTensor> tensors_to_save() const;
  CheckpointInfo info(const TrainerOptions& options) const;

  // Collective. Throws UsageError for a checkpoint of another run or of other data, naming what
  // differs.
  void restore(const Checkpoint& checkpoint, const TrainerOptions& options, Group& group);
};

// Throws UsageError for a key of TrainerOptions::values that info() needs itself.
void check_values(const std::map<std::string, std::string>& values);

// Collective. Fills a module with the parameters and buffers of a checkpoint. Of a run that kept an
// average of its parameters it takes that, unless `raw`.
struct ModelChoice {
  bool raw = false;
};
void load_model(const Checkpoint& checkpoint, const torch::nn::Module& module, Group& group,
                const ModelChoice& choice);

// The shards of the run that a checkpoint is of. Throws FormatError.
int shards_of(const Checkpoint& checkpoint);

// Those of this run: the options', else the checkpoint's, else one for each rank. Throws UsageError
// if the checkpoint's run cannot go on with the same bits, unless the options allow others.
int choose_shards(const TrainerOptions& options, const std::optional<Checkpoint>& checkpoint,
                  int num_ranks);

// The threads per rank that it computed with; 0: as libtorch has it. Throws FormatError.
int threads_of(const Checkpoint& checkpoint);

// Higher is better: the accuracy where there is one, else the loss.
double score_of(const Evaluation& evaluation);

// NaN is never better, and anything is better than nothing or NaN.
bool is_better(const Evaluation& evaluation, const std::optional<Evaluation>& best);

}  // namespace lockstep::train

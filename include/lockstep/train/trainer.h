#pragma once

// Trainer: the training loop around your model, from the first step to the last, on any number of
// ranks.
//
// Example:
//   class Digits : public lockstep::TrainingTask {
//    public:
//     std::shared_ptr<torch::nn::Module> module() const override { return net_.ptr(); }
//     lockstep::TaskOutput forward(const lockstep::Batch& batch) override {
//       return lockstep::classify(net_->forward(batch.input), batch.target);
//     }
//
//    private:
//     MyModel net_;
//   };
//   Digits task;
//   lockstep::Trainer trainer(task, {.train = train_data, .held_out = test_data}, group,
//                             {.epochs = 3, .batch_size = 64, .checkpoint_dir = "runs/digits"});
//   lockstep::TrainResult result = trainer.run();
//
// A run that is killed at any moment and started again with the same options continues from the
// newest checkpoint and ends with the same bits as a run that was never killed, on CPUs of one
// model. It keeps the number of threads with which it began. The same holds on another number of
// ranks, if `shards` can be dealt to them. On other numbers it continues only with
// `allow_other_bits`: from the same state and over the same batches, but with sums in another order
// and other random numbers.
//
// Steps. The batch of all ranks is cut into shards * accumulate equal pieces. A piece is the
// forward and backward of one part of it, with random numbers of its own, drawn from (seed, step,
// piece). The gradients of all pieces are averaged in a fixed order, clipped, and given to the
// optimizer. The order of the data is a function of (seed, epoch), and samples at the end of an
// epoch that do not fill a batch are left out. Buffers, such as BatchNorm's, follow the first
// piece, as they follow rank 0 in DistributedDataParallel.
//
// Bad steps. A step is bad if its gradient is not finite or its norm is more than `spike_factor`
// times the average of recent ones. It changes no parameter. With BadStepRule::Skip it is counted
// and training continues; with Stop, and after max_bad_steps in a row, training ends with an error.
// In float16 an overflow is normal: while the loss scale can still be lowered, the step is left out
// and counted but does not count as bad. All ranks decide alike, since all hold the same gradients.
//
// Devices. The constructor moves the task to the rank's device (TrainingTask::move_to); batches
// follow by themselves. Auto takes a GPU if every rank can have one (lockstep/device/device.h),
// unless a run that began on the CPU is resumed, and logs what it took and why. Cuda throws
// UsageError where a rank has none. A run stays on the kind of device that it began on, CPU or GPU,
// unless `allow_other_bits`. On a GPU a resumed run has the same bits only if `deterministic`.
//
// Graphs. On one GPU, Auto records a whole step, from forward() to the update, as one CUDA graph
// after three steps, and replays it for every batch of the same shapes: the host then queues one
// thing a step. Your forward() is called for the recording and not for the replays, so it must be
// all tensor operations on the batch's device: docs/concepts/train.md has what it may not do. What
// cannot be recorded is queued as without a graph, with the reason in the log. The bits are the
// same.
//
// What it does to the process: it sets libtorch's number of threads and the seeds of its default
// generators, and it does what DistributedDataParallel does. On a GPU, while the trainer is made,
// run() or evaluate() is under way, Float32 turns off TF32 and `deterministic` chooses libtorch's
// kernels; afterwards libtorch is set as it was. `deterministic` sets CUBLAS_WORKSPACE_CONFIG, if
// it is not set, for good.
//
// Errors: UsageError for options that are out of range, contradict each other or differ between
// ranks, for datasets of different sizes and for a checkpoint of another run; CommError if a rank
// is lost; OutOfMemoryError if a step needs more than the GPU has; IoError and FormatError from the
// data. A checkpoint that cannot be written is reported to the watcher, and training continues.
// Threads: one thread, the caller's.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/group.h>
#include <lockstep/data/dataset.h>
#include <lockstep/train/parameter_group.h>
#include <lockstep/train/task.h>

namespace lockstep {

enum class TrainDevice { Auto, Cpu, Cuda };           // see "Devices" above
enum class TrainGraph { Off, Auto };                  // see "Graphs" above
enum class Precision { Float32, BFloat16, Float16 };  // for autocast; parameters stay float32
enum class OptimizerKind { AdamW, Sgd, Lion };
enum class Schedule { Constant, Linear, Cosine };  // after the warm-up, down to min_lr_share
enum class BadStepRule { Skip, Stop };             // see "Bad steps" above

struct TrainerOptions {
  // When training ends: the first of these that is reached.
  int64_t epochs = 1;
  int64_t max_steps = 0;             // 0 means as many as the epochs have
  std::chrono::seconds max_time{0};  // ends with a checkpoint; 0 means no limit
  int64_t early_stop = 0;            // evaluations without a better score; 0 means never

  // How a step is computed.
  int64_t batch_size = 32;  // the samples of all ranks together
  int64_t accumulate = 1;   // how many pieces each shard computes one after another
  int shards = 0;           // see "Steps" above: a power of two; 0 means as many as ranks
  TrainDevice device = TrainDevice::Auto;
  // A GPU adds in one order: the same bits again, more slowly. An operation that libtorch cannot
  // compute so is a UsageError that names it.
  bool deterministic = false;
  TrainGraph graph = TrainGraph::Off;
  Precision precision = Precision::Float32;
  int threads = 0;  // per rank; 0 shares the host's cores among the shards there
  uint64_t seed = 1;

  // How parameters are updated.
  OptimizerKind optimizer = OptimizerKind::AdamW;
  double lr = 1e-3;
  double weight_decay = 0.01;  // for matrices; vectors (biases, norms) have none
  double beta1 = 0.9;          // for AdamW and Lion; in [0, 1)
  double beta2 = 0.999;
  double eps = 1e-8;                        // for AdamW; > 0
  double momentum = 0.9;                    // for SGD; in [0, 1)
  std::vector<ParameterGroup> groups = {};  // parameters that are updated otherwise, or frozen
  OptimizerFactory make_optimizer = {};     // an optimizer of one's own, in the place of all these
  Schedule schedule = Schedule::Cosine;
  int64_t warmup_steps = 0;
  double min_lr_share = 0.1;  // the share of lr at which the schedule ends
  double clip_norm = 1;       // the limit for all gradients together; 0 does not clip
  double ema_decay = 0;       // > 0 keeps an average of the parameters and evaluates that instead

  BadStepRule on_bad_step = BadStepRule::Skip;
  double spike_factor = 0;     // > 1; 0 means that only what is not finite is bad
  int64_t max_bad_steps = 10;  // in a row

  // When it is evaluated and reported.
  int64_t eval_every = 0;  // in steps; 0 means after each epoch
  int64_t log_every = 10;  // in steps
  int workers = 2;         // the threads that read batches

  // What is saved and resumed.
  std::string checkpoint_dir;    // a folder or s3://bucket/prefix; empty saves nothing
  int64_t checkpoint_every = 0;  // in steps; 0: at the end, when asked (SIGUSR1), and the best ones
  CheckpointOptions keep;
  bool resume = true;  // from the newest checkpoint in checkpoint_dir; false: it must hold none
  bool allow_other_bits = false;  // see the top: continue where `shards` and the ranks do not match
  std::string description;        // names the run: a checkpoint with another one is refused
  // Lines `key = value` for descriptions made of such lines. A key that the checkpoint's
  // description lacks had the value given here, and one that this run's lacks is no longer a
  // setting. Empty compares descriptions as they are.
  std::string description_defaults;
  // Names the data; empty stands for their number and a few samples. A checkpoint of a run on other
  // data is refused unless allow_other_data.
  std::string data_fingerprint;
  bool allow_other_data = false;
  // Texts kept in every checkpoint, such as the config. A key that the trainer keeps its own under,
  // such as "optimizer", is a UsageError that lists these.
  std::map<std::string, std::string> values;
  std::map<std::string, std::string> files;  // files attached to it, such as a tokenizer
};

struct TrainerData {
  std::shared_ptr<const Dataset> train;     // REQUIRED
  std::shared_ptr<const Dataset> held_out;  // null means that nothing is evaluated
};

struct Evaluation {
  int64_t step = 0;
  double loss = 0;  // the mean over all samples (tokens), each counted once
  int64_t num_counted = 0;
  int64_t num_correct = -1;
  bool is_best = false;

  double accuracy() const {
    return static_cast<double>(num_correct) / static_cast<double>(num_counted);
  }
};

// The steps since the last report. One comes every log_every steps, after each evaluation and at
// the end.
struct StepReport {
  int64_t step = 0;
  int64_t num_steps = 0;       // how many are planned
  int64_t epoch = 0;           // counted from 0
  double loss = 0;             // the mean over these steps
  double train_accuracy = -1;  // -1 if it was not counted
  double grad_norm = 0;        // in the last step, before clipping
  double lr = 0;
  double samples_per_s = 0;
  double seconds = 0;  // since run() began
  int64_t num_bad_steps = 0;
  std::optional<Evaluation> evaluation;  // if the model was evaluated after this step
};

// Functions that the trainer calls, on its own thread. Empty ones are not called.
struct TrainWatcher {
  std::function<void(int64_t step, const std::string& path)> on_resume;  // on every rank
  std::function<void(const StepReport&)> on_step;                        // on rank 0
  std::function<void(const SaveResult&)> on_checkpoint;                  // on rank 0
};

enum class TrainEnd { Done, MaxTime, EarlyStop, Asked };  // Asked by JobRequests or StopSignals

struct TrainResult {
  TrainEnd end = TrainEnd::Done;
  int64_t steps = 0;       // in the whole run, including those before a resume
  int64_t epochs = 0;      // how many have begun
  int64_t resumed_at = 0;  // a step; 0 is the start
  int64_t num_bad_steps = 0;
  StepReport last;
  std::optional<Evaluation> evaluation;  // the last one
  std::optional<Evaluation> best;
  std::optional<SaveResult> last_save;  // says whether the end was saved
  double seconds = 0;
  int threads = 0;                         // how many each rank computed with
  std::vector<uint64_t> parameter_hashes;  // one for each rank, at the end

  bool same_bits() const;  // whether every rank ended with the same model
};

class Trainer {
 public:
  // Collective. Gives all ranks rank 0's parameters and buffers. `task` must outlive the trainer.
  // Throws UsageError if another run writes to TrainerOptions::checkpoint_dir; from here until the
  // end of run() the folder is this trainer's.
  Trainer(TrainingTask& task, TrainerData data, Group group, TrainerOptions options,
          TrainWatcher watcher = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Collective. Resumes, trains and saves; call it once. The module holds the trained parameters
  // afterwards. After an error it holds those of some step; the checkpoints are valid.
  TrainResult run();

  // Collective. Evaluates the model as it is on the held-out samples. Throws UsageError if there
  // are none.
  Evaluation evaluate();

  // What this rank computes on.
  at::Device device() const;

  // How many threads each rank computes with: TrainerOptions::threads, or what was chosen for 0.
  int threads() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep

#pragma once

// Trainer: the loop around your model, from the first step to the last, on any number of ranks.
//
//   class Digits : public lockstep::TrainingTask {
//    public:
//     std::shared_ptr<torch::nn::Module> module() const override { return net_.ptr(); }
//     lockstep::TaskOutput forward(const lockstep::Batch& batch) override {
//       return lockstep::classify(net_(batch.input), batch.target);
//     }
//     ...
//   };
//   lockstep::Trainer trainer(task, {.train = data, .held_out = test}, group,
//                             {.epochs = 3, .batch_size = 64, .checkpoint_dir = "runs/digits"});
//   lockstep::TrainResult result = trainer.run();
//
// Killed at any moment and started again with the same options, it goes on from the newest
// checkpoint and ends with the same bits as a run that was never killed (on CPUs of one model; it
// goes on with the threads it began with), also on another number of ranks that `shards` can be
// dealt to. On others it goes on only with `allow_other_bits`: from the same state, over the same
// batches, but with sums in another order and other random numbers.
//
// A step. The batch of all ranks is cut into shards * accumulate equal pieces. A piece is forward
// and backward of one part of it, with random numbers of its own: from (seed, step, piece). The
// gradients of all pieces are averaged in a fixed order, clipped, and handed to the optimizer. The
// data's order is a function of (seed, epoch); samples that do not fill a batch at the end of an
// epoch are left out of it. Buffers (BatchNorm's) follow the first piece, as they follow rank 0 in
// DistributedDataParallel.
//
// A bad step. A step whose gradient is not finite, or whose norm is more than `spike_factor` times
// the average of recent ones, changes no parameter; it is counted and training goes on
// (BadStepRule::Skip), or it ends with an error (Stop; also after max_bad_steps in a row). In
// float16 a gradient that overflows is usual: as long as the loss scale can be lowered for it, the
// step is left out and counted, but not held against the run. All ranks decide alike, since all
// hold the same gradients.
//
// Errors: UsageError for options that do not go together, differ between ranks or are out of
// range, for datasets of different sizes, and for a checkpoint of another run, CommError
// when a rank is lost, IoError and FormatError from the data. A checkpoint that could not be
// written is reported to the watcher and training goes on. Threads: one, and it is the caller's.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/group.h>
#include <lockstep/data/dataset.h>

namespace torch::nn {
class Module;
}

namespace lockstep {

// What a task says of one batch.
struct TaskOutput {
  at::Tensor loss;           // a scalar: the mean over what counts
  int64_t num_counted = -1;  // samples, or tokens, in that mean; -1: the samples of the batch
  int64_t num_correct = -1;  // of these; -1: there is no such thing, or it was not counted
};

// A model and its loss.
class TrainingTask {
 public:
  virtual ~TrainingTask() = default;
  virtual std::shared_ptr<torch::nn::Module> module() const = 0;
  // Training and evaluation both; module()->is_training() tells which.
  virtual TaskOutput forward(const Batch& batch) = 0;
};

// Cross entropy of logits [batch, classes] and int64 [batch]; targets of kCorruptTarget (a sample
// that could not be read) count for nothing. Throws UsageError for another label that is not in
// [0, classes).
TaskOutput classify(const at::Tensor& logits_BV, const at::Tensor& target_B,
                    double label_smoothing = 0);

enum class Precision { Float32, BFloat16, Float16 };  // of autocast; parameters stay float32
enum class OptimizerKind { AdamW, Sgd, Lion };
enum class Schedule { Constant, Linear, Cosine };  // after the warm-up, down to min_lr_share
enum class BadStepRule { Skip, Stop };

struct TrainerOptions {
  // How long: whichever comes first.
  int64_t epochs = 1;
  int64_t max_steps = 0;             // 0: as many as the epochs have
  std::chrono::seconds max_time{0};  // 0: no limit; ends with a checkpoint
  int64_t early_stop = 0;            // evaluations without a better score; 0: never

  // A step.
  int64_t batch_size = 32;  // of all ranks together
  int64_t accumulate = 1;   // pieces one after another on each shard
  int shards = 0;           // see above: a power of two; 0: as many as ranks
  Precision precision = Precision::Float32;
  int threads = 0;  // per rank; 0: the host's cores, shared among the shards there
  uint64_t seed = 1;

  // The update.
  OptimizerKind optimizer = OptimizerKind::AdamW;
  double lr = 1e-3;
  double weight_decay = 0.01;  // of matrices; vectors (biases, norms) have none
  double beta1 = 0.9;          // AdamW, Lion; in [0, 1)
  double beta2 = 0.999;
  double eps = 1e-8;      // AdamW; above 0
  double momentum = 0.9;  // SGD; in [0, 1)
  Schedule schedule = Schedule::Cosine;
  int64_t warmup_steps = 0;
  double min_lr_share = 0.1;  // where the schedule ends, of lr
  double clip_norm = 1;       // of all gradients together; 0: not clipped
  double ema_decay = 0;       // > 0: an average of the parameters is kept and judged instead

  BadStepRule on_bad_step = BadStepRule::Skip;
  double spike_factor = 0;     // above 1; 0: only what is not finite is bad
  int64_t max_bad_steps = 10;  // in a row

  // Judging and telling.
  int64_t eval_every = 0;  // steps; 0: after each epoch
  int64_t log_every = 10;  // steps
  int workers = 2;         // threads that prepare batches

  // Checkpoints.
  std::string checkpoint_dir;    // a folder or s3://bucket/prefix; empty: none
  int64_t checkpoint_every = 0;  // steps; 0: at the end, when asked (SIGUSR1), and the best ones
  CheckpointOptions keep;
  bool resume = true;  // from the newest checkpoint in checkpoint_dir; false: there may be none
  bool allow_other_bits = false;  // see above: go on where `shards` and the ranks do not match
  std::string description;        // of the run: a checkpoint with another one is refused
  // Lines `key = value`, as in a description of such lines. A key that the checkpoint's description
  // lacks had the value that stands here; one that this run's lacks is no setting any more. Empty:
  // descriptions are compared as they are.
  std::string description_defaults;
  // What the data are known by; empty: their number and a few samples of them. A checkpoint of a
  // run on other data is refused, unless allow_other_data.
  std::string data_fingerprint;
  bool allow_other_data = false;
  std::map<std::string, std::string> values;  // kept in every checkpoint: the whole config, say
  std::map<std::string, std::string> files;   // the same, as attachments: a tokenizer, say
};

struct TrainerData {
  std::shared_ptr<const Dataset> train;     // REQUIRED
  std::shared_ptr<const Dataset> held_out;  // may be null: nothing is judged
};

struct Evaluation {
  int64_t step = 0;
  double loss = 0;  // mean over all samples (tokens), each counted once
  int64_t num_counted = 0;
  int64_t num_correct = -1;
  bool is_best = false;

  double accuracy() const {
    return static_cast<double>(num_correct) / static_cast<double>(num_counted);
  }
};

// Every log_every steps, after each evaluation and at the end: of the steps since the last one.
struct StepReport {
  int64_t step = 0;
  int64_t num_steps = 0;       // planned
  int64_t epoch = 0;           // from 0 on
  double loss = 0;             // mean over these steps
  double train_accuracy = -1;  // -1: not counted
  double grad_norm = 0;        // of the last one, before clipping
  double lr = 0;
  double samples_per_s = 0;
  double seconds = 0;  // since run() began
  int64_t num_bad_steps = 0;
  std::optional<Evaluation> evaluation;  // if the model was judged after this step
};

// What the program wants to hear of; empty functions are not called.
struct TrainWatcher {
  std::function<void(int64_t step, const std::string& path)> on_resume;  // on every rank
  std::function<void(const StepReport&)> on_step;                        // on rank 0
  std::function<void(const SaveResult&)> on_checkpoint;                  // on rank 0
};

enum class TrainEnd { Done, MaxTime, EarlyStop, Asked };  // Asked: see JobRequests, StopSignals

struct TrainResult {
  TrainEnd end = TrainEnd::Done;
  int64_t steps = 0;       // of the whole run, those before a resume too
  int64_t epochs = 0;      // begun
  int64_t resumed_at = 0;  // 0: from the start
  int64_t num_bad_steps = 0;
  StepReport last;
  std::optional<Evaluation> evaluation;  // the last
  std::optional<Evaluation> best;
  std::optional<SaveResult> last_save;  // the end is saved only if this says so
  double seconds = 0;
  int threads = 0;                         // that each rank computed with
  std::vector<uint64_t> parameter_hashes;  // of each rank, at the end

  bool same_bits() const;  // did every rank end with the same model
};

class Trainer {
 public:
  // Collective: rank 0's parameters and buffers go to all ranks. `task` must outlive the trainer.
  Trainer(TrainingTask& task, TrainerData data, Group group, TrainerOptions options,
          TrainWatcher watcher = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Collective, once: resumes, trains, saves. The module holds the trained parameters afterwards.
  TrainResult run();

  // Collective: the held-out samples, judged by the model as it is. Throws UsageError if there are
  // none.
  Evaluation evaluate();

  // That each rank computes with: TrainerOptions::threads, or what was chosen for 0.
  int threads() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep

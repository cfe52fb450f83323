#include <algorithm>
#include <bit>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <c10/core/DeviceGuard.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/comm/requests.h>
#include <lockstep/train/trainer.h>

#include "base/stopwatch.h"
#include "comm/agree.h"
#include "device/graph.h"
#include "models/parameter_hash.h"
#include "train/check_run.h"
#include "train/data_fingerprint.h"
#include "train/data_order.h"
#include "train/device_batches.h"
#include "train/device_settings.h"
#include "train/evaluate.h"
#include "train/run_device.h"
#include "train/step/out_of_memory.h"
#include "train/step/schedule.h"
#include "train/step/step.h"
#include "train/threads.h"
#include "train/train_state.h"

namespace lockstep {
namespace {

// Where there is nothing yet that could be smaller.
constexpr const char* kLargerGpu =
    "use a smaller model or a GPU with more memory, or end what else runs on this one";

std::vector<uint64_t> hashes_of_ranks(const torch::nn::Module& module, Group& group) {
  std::vector<uint64_t> hashes;
  for (const int64_t bits :
       comm::gather_numbers(group, std::bit_cast<int64_t>(models::hash_parameters(module)))) {
    hashes.push_back(std::bit_cast<uint64_t>(bits));
  }
  return hashes;
}

}  // namespace

bool TrainResult::same_bits() const {
  return std::all_of(parameter_hashes.begin(), parameter_hashes.end(),
                     [&](uint64_t hash) { return hash == parameter_hashes.front(); });
}

class Trainer::Impl {
 public:
  Impl(TrainingTask& task, TrainerData data, Group group, TrainerOptions options,
       TrainWatcher watcher)
      : task_(task),
        data_(std::move(data)),
        group_(std::move(group)),
        options_(std::move(options)),
        watcher_(std::move(watcher)),
        module_(task.module()) {
    train::check_same_run(group_, options_, data_);
    train::check_run(options_, data_);
    if (options_.make_optimizer) {
      options_.lr = 1;  // the schedule gives the share of each group's own learning rate
    }
    if (!options_.checkpoint_dir.empty()) {
      claim_folder();
    }
    progress_.shards = train::choose_shards(options_, checkpoint_, group_.size());
    progress_.threads = train::choose_threads(group_, options_, progress_.shards, checkpoint_);
    if (progress_.threads > 0) {
      at::set_num_threads(progress_.threads);
    }
    pieces_ = train::cut_into_pieces(options_, progress_.shards, group_.rank(), group_.size());
    order_ = std::make_unique<train::DataOrder>(data_.train->size(), options_.seed, pieces_);
    move_to_device();
    batches_ = std::make_unique<train::DeviceBatches>(
        data_.train, train::BatchesOptions{.workers = options_.workers, .device = device_});
    num_steps_ = options_.epochs * order_->steps_per_epoch();
    if (options_.max_steps > 0) {
      num_steps_ = std::min(num_steps_, options_.max_steps);
    }
  }

  TrainResult run() {
    const base::Stopwatch time;
    const c10::OptionalDeviceGuard current(train::gpu_of(device_));
    const device::OnStream on_stream(stream());
    const train::DeviceSettings settings(device_, options_);
    if (!options_.checkpoint_dir.empty() && options_.data_fingerprint.empty()) {
      options_.data_fingerprint = train::fingerprint_samples(data_, group_);
    }
    restore();
    JobRequests requests(group_);
    module_->train();
    result_.resumed_at = progress_.step;
    if (!is_last()) {
      start_epoch();
    }
    std::optional<TrainEnd> end = end_by_progress();
    while (!end) {
      step(time);
      end = end_of_step(requests.at_step_boundary(), time);
    }
    return finish(*end, time);
  }

  at::Device device() const { return device_; }
  int threads() const { return progress_.threads > 0 ? progress_.threads : at::get_num_threads(); }

  Evaluation evaluate_now() {
    if (!data_.held_out) {
      throw UsageError(
          "trainer: evaluate(): there is nothing to judge by: TrainerData::held_out is null; give "
          "the trainer held-out data when you make it");
    }
    const c10::OptionalDeviceGuard current(train::gpu_of(device_));
    const device::OnStream on_stream(stream());
    const train::DeviceSettings settings(device_, options_);
    wait_captured();  // parameters and average change places
    share_buffers();
    const train::ParameterAverage::Swap swap(runner_->average());
    Evaluation evaluation = lockstep::train::evaluate(task_, data_.held_out, group_,
                                                      {.batch_size = pieces_.batch_size,
                                                       .workers = options_.workers,
                                                       .precision = options_.precision,
                                                       .device = device_,
                                                       .copies = batches_->copies()});
    evaluation.step = progress_.step;
    return evaluation;
  }

 private:
  // The folder is this run's before it looks for a checkpoint: another run that ends meanwhile may
  // still save one.
  void claim_folder() {
    options_.keep.allow_existing = options_.keep.allow_existing && options_.resume;
    writer_.emplace(options_.checkpoint_dir, group_, options_.keep);
    attachments_ = std::make_shared<const std::map<std::string, std::string>>(options_.files);
    if (options_.resume) {
      checkpoint_ = find_checkpoint(options_.checkpoint_dir, group_);
    }
  }

  void move_to_device() {
    device_ = train::choose_device(group_, train::device_choice(options_, checkpoint_));
    progress_.device = train::kind_of(device_);
    const c10::OptionalDeviceGuard current(train::gpu_of(device_));
    graphs_ = train::choose_graphs(options_, group_, device_);
    const device::OnStream on_stream(stream());
    const train::DeviceSettings settings(device_, options_);
    const auto set_up = [&] {
      task_.move_to(device_);
      const train::StepRunner::Setting setting{
          .options = options_, .pieces = pieces_, .device = device_, .graphs = graphs_};
      runner_ = std::make_unique<train::StepRunner>(task_, group_, setting);
    };
    train::explain_out_of_memory(set_up, [] {
      return train::MemoryAdvice{.what = "the model with its gradients and optimizer",
                                 .way_out = kLargerGpu};
    });
  }

  // On which everything runs that a graph may hold.
  std::optional<c10::Stream> stream() const {
    return graphs_ ? std::optional(graphs_->stream()) : std::nullopt;
  }

  // Collective.
  void share_buffers() {
    train::explain_out_of_memory([&] { runner_->share_buffers(); },
                                 [&] { return advice("what ranks exchange of buffers"); });
  }

  std::vector<NamedTensor> tensors_to_save() {
    return train::explain_out_of_memory(
        [&] { return state().tensors_to_save(); },
        [&] { return advice("what a checkpoint copies of buffers and optimizer"); });
  }

  // Between steps.
  train::MemoryAdvice advice(const char* what) const {
    return {.what = what, .way_out = train::smaller_pieces(options_, pieces_.batch_size)};
  }

  train::TrainState state() {
    return {*module_,
            runner_->optimizer(),
            runner_->average(),
            runner_->bad_steps(),
            runner_->loss_scale(),
            progress_};
  }

  void restore() {
    if (!checkpoint_) {
      return;
    }
    train::explain_out_of_memory([&] { state().restore(*checkpoint_, options_, group_); },
                                 [] {
                                   return train::MemoryAdvice{
                                       .what = "the state that the checkpoint brings back",
                                       .way_out = kLargerGpu};
                                 });
    saved_step_ = progress_.step;
    reported_step_ = progress_.step;
    if (const int before = train::shards_of(*checkpoint_);
        before != progress_.shards && group_.rank() == 0) {
      log::warn("train", "goes on with {} shards instead of {}: the result has other bits",
                progress_.shards, before);
    }
    if (watcher_.on_resume) {
      watcher_.on_resume(progress_.step, checkpoint_->path());
    }
    checkpoint_.reset();
  }

  void start_epoch() {
    const int64_t epoch = progress_.step / order_->steps_per_epoch();
    const int64_t first = progress_.step % order_->steps_per_epoch();
    batches_->start(order_->indices(epoch, first), pieces_.batch_size, options_.seed, epoch);
  }

  void step(const base::Stopwatch& time) {
    const double lr = train::learning_rate(options_, progress_.step, num_steps_);
    const double grad_norm = runner_->run({.step = progress_.step,
                                           .lr = lr,
                                           .next_batch = [this] { return next_batch(); },
                                           .fetch_ahead = [this] { batches_->fetch_ahead(); },
                                           .before_update = [this] { wait_captured(); }});
    ++progress_.step;
    const bool is_epoch_end = progress_.step % order_->steps_per_epoch() == 0;
    if (progress_.step % options_.log_every == 0 || is_last() || is_evaluation_due()) {
      report_ = make_report(lr, grad_norm, time);
    }
    if (is_epoch_end && !is_last()) {
      start_epoch();  // the workers begin while the model is judged
    }
  }

  Batch next_batch() {
    auto batch = batches_->next();
    LOCKSTEP_CHECK(batch.has_value(), "the data ended in the middle of an epoch, at step {}",
                   progress_.step);
    return std::move(*batch);
  }

  void wait_captured() {
    if (writer_) {
      writer_->wait_captured();
    }
  }

  bool is_last() const { return progress_.step >= num_steps_; }

  bool is_evaluation_due() const {
    const int64_t every = options_.eval_every > 0 ? options_.eval_every : order_->steps_per_epoch();
    return data_.held_out && (progress_.step % every == 0 || is_last());
  }

  StepReport make_report(double lr, double grad_norm, const base::Stopwatch& time) {
    const train::SeenSums sums = runner_->take_sums();
    const double now = time.seconds();
    const auto samples =
        static_cast<double>((progress_.step - reported_step_) * options_.batch_size);
    StepReport report{.step = progress_.step,
                      .num_steps = num_steps_,
                      .epoch = (progress_.step - 1) / order_->steps_per_epoch(),
                      .loss = sums.loss,
                      .grad_norm = grad_norm,
                      .lr = runner_->optimizer().shown_lr(lr),
                      .samples_per_s = samples / (now - reported_seconds_),
                      .seconds = now,
                      .num_bad_steps = runner_->bad_steps().num_all(),
                      .evaluation = {}};
    if (sums.num_correct >= 0) {
      report.train_accuracy = static_cast<double>(sums.num_correct) /
                              static_cast<double>(std::max<int64_t>(sums.num_counted, 1));
    }
    reported_step_ = progress_.step;
    reported_seconds_ = now;
    return report;
  }

  void tell_report() {
    if (report_) {
      result_.last = *report_;
      if (watcher_.on_step && group_.rank() == 0) {
        watcher_.on_step(*report_);
      }
      report_.reset();
    }
  }

  void judge() {
    Evaluation evaluation = evaluate_now();
    evaluation.is_best = train::is_better(evaluation, progress_.best);
    if (evaluation.is_best) {
      progress_.best = evaluation;
      progress_.num_stale = 0;
    } else {
      ++progress_.num_stale;
    }
    result_.evaluation = evaluation;
    report_->evaluation = evaluation;
  }

  std::optional<TrainEnd> end_by_progress() const {
    if (is_last()) {
      return TrainEnd::Done;
    }
    if (options_.early_stop > 0 && progress_.num_stale >= options_.early_stop) {
      return TrainEnd::EarlyStop;
    }
    return std::nullopt;
  }

  // Does what happens between two steps. Returns how the run ends, if that was the last one.
  std::optional<TrainEnd> end_of_step(JobRequest request, const base::Stopwatch& time) {
    const bool is_judged = is_evaluation_due();
    if (is_judged) {
      judge();
    }
    tell_report();
    std::optional<TrainEnd> end = end_by_progress();
    if (!end && request == JobRequest::CheckpointAndStop) {
      end = TrainEnd::Asked;
    } else if (!end && is_time_over(time)) {
      end = TrainEnd::MaxTime;
    }
    const bool is_new_best = is_judged && result_.evaluation->is_best && options_.keep.keep_best;
    const bool is_due =
        options_.checkpoint_every > 0 && progress_.step % options_.checkpoint_every == 0;
    if (end || is_due || is_new_best || request == JobRequest::Checkpoint) {
      save();
    }
    tell_saves();
    return end;
  }

  // All ranks go by rank 0's clock.
  bool is_time_over(const base::Stopwatch& time) {
    if (options_.max_time.count() == 0) {
      return false;
    }
    const at::Tensor is_over = at::full(
        {1}, time.seconds() >= static_cast<double>(options_.max_time.count()) ? 1 : 0, at::kInt);
    group_.broadcast(is_over);
    return is_over.item<int>() != 0;
  }

  void save() {
    if (!writer_ || saved_step_ == progress_.step) {
      return;
    }
    share_buffers();
    CheckpointInfo info = state().info(options_);
    info.attachments = attachments_;
    writer_->begin(std::move(info), tensors_to_save());
    saved_step_ = progress_.step;
  }

  void tell_saves() {
    if (!writer_) {
      return;
    }
    for (const SaveResult& save : writer_->take_results()) {
      result_.last_save = save;
      if (watcher_.on_checkpoint && group_.rank() == 0) {
        watcher_.on_checkpoint(save);
      }
    }
  }

  TrainResult finish(TrainEnd end, const base::Stopwatch& time) {
    share_buffers();
    if (data_.held_out && !result_.evaluation) {
      result_.evaluation = evaluate_now();  // it was resumed after its end
    }
    if (writer_) {
      writer_->wait();
      tell_saves();
      writer_.reset();
    }
    result_.end = end;
    result_.steps = progress_.step;
    result_.epochs = (progress_.step + order_->steps_per_epoch() - 1) / order_->steps_per_epoch();
    result_.num_bad_steps = runner_->bad_steps().num_all();
    result_.best = progress_.best;
    result_.parameter_hashes = hashes_of_ranks(*module_, group_);
    result_.threads = threads();
    result_.seconds = time.seconds();
    return result_;
  }

  TrainingTask& task_;
  TrainerData data_;
  Group group_;
  TrainerOptions options_;
  TrainWatcher watcher_;
  std::shared_ptr<torch::nn::Module> module_;
  std::optional<Checkpoint> checkpoint_;  // the run goes on from it
  at::Device device_ = at::kCPU;
  std::shared_ptr<device::Graphs> graphs_;  // null: steps are not recorded
  train::Progress progress_;
  train::Pieces pieces_;
  std::unique_ptr<train::DataOrder> order_;
  std::unique_ptr<train::StepRunner> runner_;
  std::unique_ptr<train::DeviceBatches> batches_;
  std::optional<CheckpointWriter> writer_;
  std::shared_ptr<const std::map<std::string, std::string>> attachments_;  // of every save
  int64_t num_steps_ = 0;
  int64_t saved_step_ = -1;
  std::optional<StepReport> report_;  // to be told when the model has been judged
  int64_t reported_step_ = 0;
  double reported_seconds_ = 0;
  TrainResult result_;
};

Trainer::Trainer(TrainingTask& task, TrainerData data, Group group, TrainerOptions options,
                 TrainWatcher watcher)
    : impl_(std::make_unique<Impl>(task, std::move(data), std::move(group), std::move(options),
                                   std::move(watcher))) {}

Trainer::~Trainer() = default;

TrainResult Trainer::run() {
  return impl_->run();
}

at::Device Trainer::device() const {
  return impl_->device();
}

int Trainer::threads() const {
  return impl_->threads();
}

Evaluation Trainer::evaluate() {
  return impl_->evaluate_now();
}

}  // namespace lockstep

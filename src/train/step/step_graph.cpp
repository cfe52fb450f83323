// The step of StepRunner as one graph: what step.cpp does one operation at a time is recorded here,
// with tensors in the place of the numbers that change, and replayed.

#include <cmath>
#include <limits>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <lockstep/base/error.h>

#include "train/step/step.h"

namespace lockstep::train {
namespace {

at::Tensor state_of_host_generator() {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

void StepRunner::use_graphs(std::shared_ptr<device::Graphs> graphs) {
  if (!graphs) {
    return;
  }
  const size_t num_lrs = optimizer_->can_be_recorded() ? optimizer_->group_lrs(0).size() : 0;
  numbers_.emplace(device_, num_lrs);
  graphed_.emplace(std::move(graphs), module_, device_);
}

double StepRunner::take_graphed_step(const Inputs& inputs) {
  std::vector<Batch> batches;
  for (int local = 0; local < pieces_.num_local; ++local) {
    if (local > 0 && inputs.fetch_ahead) {
      inputs.fetch_ahead();
    }
    batches.push_back(inputs.next_batch());
  }
  const GraphedStep::Way way = graphed_->choose(batches);
  if (way == GraphedStep::Way::Replay ||
      (way == GraphedStep::Way::Record && record_step(inputs, batches))) {
    return replay_step(inputs, batches);
  }
  Inputs fetched = inputs;
  fetched.next_batch = [&, next = batches.begin()]() mutable { return std::move(*next++); };
  return take_eager_step(fetched);
}

bool StepRunner::record_step(const Inputs& inputs, const std::vector<Batch>& batches) {
  const at::Tensor known = seen_.known().clone();
  recorded_ = {};
  const auto work = [&](const std::vector<Batch>& fixed, device::Recorder& recorder) {
    Inputs recording{.step = inputs.step, .next_batch = {}, .recorder = &recorder};
    recording.next_batch = [next = fixed.begin()]() mutable { return *next++; };
    queue_step(recording);
  };
  const bool is_recorded = graphed_->record(batches, work);
  recorded_.known = seen_.known() - known;  // nothing has been seen yet
  seen_.add_known(-recorded_.known);
  recorded_.find_faults = std::move(find_faults_);
  optimizer_->zero_grad();
  if (!is_recorded) {
    reducer_.rebind(group_);  // it may be in the middle of a step
  }
  return is_recorded;
}

void StepRunner::queue_step(const Inputs& recording) {
  numbers_->begin();
  const at::Tensor host_state = state_of_host_generator();
  run_pieces(recording);
  if (!device_.is_cpu() && !state_of_host_generator().equal(host_state)) {
    throw UsageError(
        "forward() draws random numbers of the CPU, which a replay would not draw again; draw them "
        "on the batch's device");
  }
  const at::NoGradGuard no_grad;
  const at::Tensor norm =
      reducer_.clip_grad_norm(options_.clip_norm > 0 ? numbers_->max_norm() : at::Tensor());
  const at::Tensor skips = numbers_->judge(norm);
  if (loss_scale_.is_dynamic()) {
    optimizer_->scale_gradients(numbers_->loss_scale().reciprocal());
  }
  if (optimizer_->can_be_recorded()) {
    optimizer_->record_step({.lrs = numbers_->lrs(), .skips = skips});
  } else {
    recorded_.gradients = optimizer_->gradients();
  }
  optimizer_->zero_grad();
}

double StepRunner::replay_step(const Inputs& inputs, const std::vector<Batch>& batches) {
  const double scale = loss_scale_.value();
  StepNumbers::Values values{.loss_scale = scale, .norm_limit = bad_steps_.limit(), .lrs = {}};
  if (options_.clip_norm > 0) {
    values.max_norm = options_.clip_norm * scale;
  }
  if (optimizer_->can_be_recorded()) {
    values.lrs = optimizer_->group_lrs(inputs.lr);
  }
  std::vector<uint64_t> seeds;
  for (int local = 0; local < pieces_.num_local; ++local) {
    seeds.push_back(seed_of(inputs.step, pieces_.first + local));
  }
  numbers_->write(values);
  if (inputs.before_update) {
    inputs.before_update();
  }
  graphed_->replay(batches, seeds);
  seen_.add_known(recorded_.known);
  if (inputs.fetch_ahead) {
    inputs.fetch_ahead();
  }
  const StepNumbers::Result result = numbers_->result();
  const double grad_norm = result.norm / scale;
  find_faults_ = recorded_.find_faults;
  const bool is_taken = accept(inputs.step, grad_norm);
  LOCKSTEP_CHECK(is_taken != result.skipped, "step {}: the device and the host disagree on {}",
                 inputs.step, grad_norm);
  const at::NoGradGuard no_grad;
  if (is_taken && !optimizer_->can_be_recorded()) {
    optimizer_->use_gradients(recorded_.gradients);
    optimizer_->step(inputs.lr);
    optimizer_->zero_grad();
  }
  if (is_taken) {
    average_.update();
  }
  ++num_seen_steps_;
  return grad_norm;
}

}  // namespace lockstep::train

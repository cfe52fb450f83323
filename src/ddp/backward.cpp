// What happens between the first gradient of a backward and its end; see reducer_impl.h.

#include <algorithm>

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <lockstep/base/error.h>

#include "comm/backends/backend.h"
#include "ddp/reduce_clock.h"
#include "ddp/reducer_impl.h"

namespace lockstep {

// Autograd hands the first gradient of a backward to the model's outputs, in the outermost backward
// even if parts of the model are checkpointed; a parameter's may come in an inner one.
void Reducer::Impl::on_output() {
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  if (chosen != nullptr && !chosen->empty()) {
    return;  // autograd::grad(), which accumulates nothing
  }
  const std::lock_guard lock(mutex_);
  stream_order_.join();
  begin_backward();
}

void Reducer::Impl::on_gradient(size_t parameter) {
  const std::lock_guard lock(mutex_);
  stream_order_.join();
  begin_backward();
  ++backward_.num_fired[parameter];
  if (!backward_.syncs) {
    was_used_[parameter] = true;
    return;
  }
  if (is_first_) {
    backward_.fired_order.push_back(parameter);
    return;
  }
  const int fired = backward_.num_fired[parameter];
  if (fired == expected_fires_[parameter]) {
    add_part(parameter);
    send_full_buckets();
    finish_sent_buckets();
  } else if (fired > expected_fires_[parameter] && !backward_.repeated) {
    backward_.repeated = parameter;
  }
}

void Reducer::Impl::begin_backward() {
  if (backward_.is_running) {
    return;
  }
  if (c10::GradMode::is_enabled()) {
    throw UsageError(
        "ddp: backward with create_graph: gradients of gradients are not synchronised; use "
        "autograd::grad on the module itself");
  }
  const bool needs_forward = join_ || !buffers_.empty();
  if (!has_ever_forwarded_ && needs_forward) {
    throw UsageError(
        "ddp: backward reached the model, but its forward was not called through the wrapper, so "
        "its buffers were not synchronised; write ddp(input) instead of model(input)");
  }
  start_backward_state(no_sync_depth_ == 0);
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->finish_backward();
    }
  });
  if (memory_->arena() && no_sync_depth_ == 0) {
    serving_.emplace(memory_->arena());
  }
  if (num_local_shards_ > 1 && next_shard_ == 0) {
    for (const ddp::TrainedParameter& parameter : tensors_.trained) {  // a step starts from zero
      at::Tensor tensor = parameter.tensor;
      tensor.mutable_grad().reset();
    }
  }
  if (no_sync_depth_ == 0 && next_shard_ == 0) {
    rebuild_if_due();  // before partial sums lie in the buckets
  }
  if (backward_.syncs) {
    expect_gradients();
  }
}

void Reducer::Impl::start_backward_state(bool syncs) {
  backward_ = {};
  backward_.is_running = true;
  backward_.syncs = syncs && is_last_shard();
  backward_.began = base::Clock::now();
  backward_.clock = std::make_shared<ddp::ReduceClock>();
  backward_.num_fired.assign(tensors_.trained.size(), 0);
  backward_.is_ready.assign(tensors_.trained.size(), false);
}

void Reducer::Impl::rebuild_if_due() {
  if (!is_rebuild_due_) {
    return;
  }
  is_rebuild_due_ = false;
  const auto count = static_cast<int64_t>(arrival_order_.size());
  const at::Tensor order = at::zeros({count}, at::kLong);
  auto* const places = order.mutable_data_ptr<int64_t>();
  std::copy(arrival_order_.begin(), arrival_order_.end(), places);
  group_.broadcast(order, {.root = join_ ? join_->root : 0});
  std::copy_n(places, count, arrival_order_.begin());
  lay_out_buckets();
}

void Reducer::Impl::expect_gradients() {
  for (const GradBucket& bucket : memory_->buckets()) {
    backward_.num_missing.push_back(bucket.parameters.size());
  }
  if (is_first_ || !options_.static_graph || backward_.is_shadow) {
    return;
  }
  for (size_t i = 0; i < tensors_.trained.size(); ++i) {
    if (expected_fires_[i] == 0) {
      add_part(i);  // nothing will come
    }
  }
}

// This rank's part of the sum goes into the bucket: its gradient, or zeros.
void Reducer::Impl::add_part(size_t parameter) {
  if (backward_.is_ready[parameter]) {
    return;
  }
  backward_.is_ready[parameter] = true;
  if (tensors_.trained[parameter].has_sparse_gradient) {
    return;
  }
  const c10::AutoGradMode no_grad(false);
  const base::Clock::time_point begin = base::Clock::now();
  at::Tensor tensor = tensors_.trained[parameter].tensor;
  at::Tensor& gradient = tensor.mutable_grad();
  if (gradient.defined() && gradient.is_sparse()) {
    throw UsageError(
        "ddp: parameter '{}' got a sparse gradient, but is not the weight of an Embedding or "
        "EmbeddingBag made with sparse(true)",
        tensors_.trained[parameter].name);
  }
  if (backward_.is_shadow) {
    memory_->put_zeros(parameter);
  } else if (shard_sum_) {
    shard_sum_->add(parameter, memory_->view(parameter), next_shard_, gradient);
    gradient.reset();
  } else if (gradient.defined()) {
    memory_->take_in(parameter);
  } else {
    memory_->put_zeros(parameter);
  }
  if (optimizer_ != nullptr) {
    gradient.reset();  // the optimizer is to see those of one bucket only
  }
  backward_.copy_in += base::Clock::now() - begin;
  --backward_.num_missing[memory_->bucket_of(parameter)];
}

void Reducer::Impl::send_full_buckets() {
  if (!overlaps_ && !backward_.is_at_end) {
    return;
  }
  while (backward_.works.size() < backward_.num_missing.size() &&
         backward_.num_missing[backward_.works.size()] == 0) {
    send_next_bucket();
  }
}

int Reducer::Impl::divisor() const {
  const int ranks =
      join_ && !join_->options.divide_by_initial_size ? join_->num_active : group_.size();
  return ranks * num_local_shards_;
}

bool Reducer::Impl::divides_ourselves() const {
  return divisor() != group_.size();
}

void Reducer::Impl::send_next_bucket() {
  const size_t index = backward_.works.size();
  const GradBucket& bucket = memory_->buckets()[index];
  backward_.clock->began(base::Clock::now());
  Work work;
  if (options_.comm_hook) {
    work = options_.comm_hook->start(bucket, group_);
  } else {
    const ReduceOp op = divides_ourselves() ? ReduceOp::Sum : ReduceOp::Average;
    if (overlaps_ || is_on_device_) {
      work = group_.all_reduce_async(bucket.buffer, {.op = op});
    } else {
      group_.all_reduce(bucket.buffer, {.op = op});
    }
  }
  if (const auto& state = comm::WorkAccess::state(work)) {
    state->on_done([clock = backward_.clock, index](std::exception_ptr) { clock->ended(index); });
  } else {
    backward_.clock->ended(index);
  }
  backward_.works.push_back(std::move(work));
}

// step_in_backward: what has been reduced meanwhile is used at once. A hook's finish() may
// communicate, so with one it waits for the end, where all ranks come in the same order.
void Reducer::Impl::finish_sent_buckets() {
  if (optimizer_ == nullptr || options_.comm_hook || maps_used()) {
    return;
  }
  while (backward_.num_finished < backward_.works.size() &&
         backward_.works[backward_.num_finished].done()) {
    finish_bucket(backward_.num_finished++, {});
  }
}

void Reducer::Impl::finish_bucket(size_t index, const std::vector<bool>& is_used) {
  const c10::AutoGradMode no_grad(false);
  const GradBucket& bucket = memory_->buckets()[index];
  backward_.works[index].wait();
  if (options_.comm_hook) {
    options_.comm_hook->finish(bucket, group_);
    if (num_local_shards_ > 1) {
      at::Tensor buffer = bucket.buffer;
      buffer.div_(num_local_shards_);
    }
  } else if (divides_ourselves()) {
    at::Tensor buffer = bucket.buffer;
    buffer.div_(divisor());
  }
  if (optimizer_ != nullptr && !backward_.is_shadow) {
    step_parameters_of(index, is_used);
  }
}

// The optimizer steps whatever has a gradient: it is to see those of this bucket only. Others may
// have one from backwards under no_sync.
void Reducer::Impl::step_parameters_of(size_t bucket, const std::vector<bool>& is_used) {
  std::vector<at::Tensor> hidden(tensors_.trained.size());
  for (size_t i = 0; i < tensors_.trained.size(); ++i) {
    at::Tensor tensor = tensors_.trained[i].tensor;
    hidden[i] = std::exchange(tensor.mutable_grad(), at::Tensor());
    if (memory_->bucket_of(i) == bucket && (is_used.empty() || is_used[i])) {
      tensor.mutable_grad() = memory_->view(i);
    }
  }
  optimizer_->step();
  for (size_t i = 0; i < tensors_.trained.size(); ++i) {
    at::Tensor tensor = tensors_.trained[i].tensor;
    tensor.mutable_grad() = hidden[i];
  }
}

void Reducer::Impl::finish_backward() {
  const std::lock_guard lock(mutex_);
  stream_order_.join();
  serving_.reset();
  if (!backward_.is_running) {
    return;
  }
  if (!backward_.syncs) {
    end_local_backward();
    return;
  }
  complete();
}

void Reducer::Impl::end_local_backward() {
  if (num_local_shards_ > 1) {
    for (size_t i = 0; i < tensors_.trained.size(); ++i) {
      at::Tensor tensor = tensors_.trained[i].tensor;
      shard_sum_->add(i, memory_->view(i), next_shard_, tensor.grad());
      was_used_[i] = was_used_[i] || tensor.grad().defined();
      tensor.mutable_grad().reset();
    }
    ++next_shard_;
  }
  backward_ = {};
}

}  // namespace lockstep

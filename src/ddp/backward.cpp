// What happens between the first gradient of a backward and its end; see reducer_impl.h.

#include <algorithm>

#include <ATen/ops/zeros.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <lockstep/base/error.h>

#include "ddp/reduce_clock.h"
#include "ddp/reducer_impl.h"
#include "ddp/sparse_reduce.h"

namespace lockstep {

// What all ranks learn of each other at the end of a step: the largest of each number.
struct Reducer::Impl::Verdict {
  // Which parameter of which rank, packed so that the largest is the first parameter's; 0: none.
  enum Field { Step, NegativeStep, Missing, Repeated, Changed, NumFields };

  at::Tensor numbers;  // int64; with find_unused_parameters 1 behind them for each used parameter
  Work work;

  int64_t* data() const { return numbers.mutable_data_ptr<int64_t>(); }
};

namespace {

int64_t pack_blame(size_t parameter, size_t num_parameters, int rank, int size) {
  return static_cast<int64_t>(num_parameters - parameter) * size + (size - 1 - rank);
}

struct Blame {
  size_t parameter;
  int rank;
};

Blame unpack_blame(int64_t packed, size_t num_parameters, int size) {
  return {num_parameters - static_cast<size_t>(packed / size),
          size - 1 - static_cast<int>(packed % size)};
}

}  // namespace

// Autograd hands the first gradient of a backward to the model's outputs, in the outermost backward
// even if parts of the model are checkpointed; a parameter's may come in an inner one.
void Reducer::Impl::on_output() {
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  if (chosen != nullptr && !chosen->empty()) {
    return;  // autograd::grad(), which accumulates nothing
  }
  const std::lock_guard lock(mutex_);
  begin_backward();
}

void Reducer::Impl::on_gradient(size_t parameter) {
  const std::lock_guard lock(mutex_);
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
        "ddp: backward with create_graph: gradients of gradients are not synchronised; compute "
        "them "
        "with autograd::grad on the module itself");
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
    for (const TrainedParameter& parameter : tensors_.trained) {  // a step starts from zero
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
  backward_.began = Clock::now();
  backward_.clock = std::make_shared<ReduceClock>();
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
  const Clock::time_point begin = Clock::now();
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
  backward_.copy_in += Clock::now() - begin;
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
  backward_.clock->began(Clock::now());
  Work work;
  if (options_.comm_hook) {
    work = options_.comm_hook->start(bucket, group_);
  } else {
    const ReduceOp op = divides_ourselves() ? ReduceOp::Sum : ReduceOp::Average;
    if (overlaps_) {
      work = group_.all_reduce_async(bucket.buffer, {.op = op});
    } else {
      group_.all_reduce(bucket.buffer, {.op = op});
    }
  }
  work.on_done([clock = backward_.clock, index](std::exception_ptr) { clock->ended(index); });
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
    finish_bucket(backward_, backward_.num_finished++, {});
  }
}

void Reducer::Impl::finish_bucket(Backward& backward, size_t index,
                                  const std::vector<bool>& is_used) {
  const c10::AutoGradMode no_grad(false);
  const GradBucket& bucket = memory_->buckets()[index];
  backward.works[index].wait();
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
  if (optimizer_ == nullptr || backward.is_shadow) {
    return;
  }
  step_parameters_of(index, is_used);
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
  serving_.reset();
  if (!backward_.is_running) {
    return;
  }
  if (!backward_.syncs) {
    end_local_backward();
    return;
  }
  // Taken away first: whatever is thrown below, the next backward starts afresh.
  complete(std::move(backward_));
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

bool Reducer::Impl::maps_used() const {
  return options_.find_unused_parameters || (options_.static_graph && is_first_);
}

void Reducer::Impl::complete(Backward backward) {
  const c10::AutoGradMode no_grad(false);
  backward_ = std::move(backward);
  std::vector<std::pair<size_t, at::Tensor>> untouched;
  for (size_t i = 0; i < tensors_.trained.size(); ++i) {
    const at::Tensor& gradient = tensors_.trained[i].tensor.grad();
    const bool is_unused = backward_.num_fired[i] == 0 && !was_used_[i];
    if (is_unused && maps_used() && gradient.defined() && !gradient.is_sparse() &&
        !backward_.is_ready[i]) {
      untouched.emplace_back(i, gradient.clone());
    }
    add_part(i);
  }
  const Clock::time_point waited_from = Clock::now();
  backward_.is_at_end = true;
  send_full_buckets();
  const Verdict verdict = make_verdict(backward_);
  backward = std::move(backward_);
  backward_ = {};
  ++step_;
  next_shard_ = 0;
  has_forwarded_ = false;

  Work(verdict.work).wait();
  std::vector<bool> is_used;
  if (maps_used()) {
    const int64_t* used = verdict.data() + Verdict::NumFields;
    is_used.assign(used, used + tensors_.trained.size());
  } else if (options_.static_graph) {
    is_used = static_unused_;
    is_used.flip();
  }
  while (backward.num_finished < backward.works.size()) {
    finish_bucket(backward, backward.num_finished++, is_used);
  }
  const auto forget = c10::make_scope_exit([this] { memory_->let_go(); });
  record_times(backward, waited_from);
  judge(verdict);
  for (const auto& [i, values] : untouched) {
    if (!is_used[i]) {
      at::Tensor view = memory_->view(i);
      view.copy_(values);
    }
  }
  settle_gradients(backward, is_used);
  if (is_first_) {
    static_unused_ = is_used;
    static_unused_.flip();
    learn_from_first_step(backward);
  }
  was_used_.assign(tensors_.trained.size(), false);
  if (tuner_ && !tuner_->is_done() && tuner_->record(group_, times_.backward)) {
    is_rebuild_due_ = true;
  }
}

Reducer::Impl::Verdict Reducer::Impl::make_verdict(const Backward& backward) {
  const size_t count = tensors_.trained.size();
  const size_t num_used = maps_used() ? count : 0;
  Verdict verdict{at::zeros({static_cast<int64_t>(Verdict::NumFields + num_used)}, at::kLong), {}};
  int64_t* const numbers = verdict.data();
  numbers[Verdict::Step] = step_ + 1;
  numbers[Verdict::NegativeStep] = -(step_ + 1);
  const auto blame = [&](size_t parameter) {
    return pack_blame(parameter, count, group_.rank(), group_.size());
  };
  for (size_t i = 0; i < count && !backward.is_shadow; ++i) {
    const bool is_used = backward.num_fired[i] > 0 || was_used_[i];
    if (num_used > 0) {
      numbers[Verdict::NumFields + i] = is_used;
    }
    const bool may_be_unused = options_.find_unused_parameters || options_.static_graph;
    if (!is_used && !may_be_unused) {
      numbers[Verdict::Missing] = std::max(numbers[Verdict::Missing], blame(i));
    }
    if (options_.static_graph && !is_first_ && backward.num_fired[i] != expected_fires_[i]) {
      numbers[Verdict::Changed] = std::max(numbers[Verdict::Changed], blame(i));
    }
  }
  if (backward.repeated) {
    numbers[Verdict::Repeated] = blame(*backward.repeated);
  }
  verdict.work = group_.all_reduce_async(verdict.numbers, {.op = ReduceOp::Max});
  return verdict;
}

// Every rank comes to the same sentence.
void Reducer::Impl::judge(const Verdict& verdict) const {
  const int64_t* const numbers = verdict.data();
  if (numbers[Verdict::Step] != -numbers[Verdict::NegativeStep]) {
    throw DesyncError(
        "ddp: ranks are in different steps: one ends its synchronised backward {}, another its {}; "
        "did one of them skip a backward?",
        -numbers[Verdict::NegativeStep], numbers[Verdict::Step]);
  }
  const auto blame = [&](Verdict::Field field) {
    return unpack_blame(numbers[field], tensors_.trained.size(), group_.size());
  };
  if (numbers[Verdict::Changed] != 0) {
    const auto [parameter, rank] = blame(Verdict::Changed);
    throw UsageError(
        "ddp: static_graph: parameter '{}' of rank {} did not get as many gradients in step {} as "
        "in the first; leave static_graph out for a model whose graph changes",
        tensors_.trained[parameter].name, rank, step_);
  }
  if (numbers[Verdict::Repeated] != 0) {
    const auto [parameter, rank] = blame(Verdict::Repeated);
    throw UsageError(
        "ddp: parameter '{}' of rank {} got more gradients in step {} than in the first, after its "
        "bucket was sent; a checkpointed part must be run equally often in every step",
        tensors_.trained[parameter].name, rank, step_);
  }
  if (numbers[Verdict::Missing] != 0) {
    const auto [parameter, rank] = blame(Verdict::Missing);
    throw UsageError(
        "ddp: parameter '{}' of rank {} got no gradient in step {}: backward did not reach it. Set "
        "find_unused_parameters if parts of the model may be unused; otherwise look for an output "
        "that is not in the loss, or a parameter that was frozen after wrapping",
        tensors_.trained[parameter].name, rank, step_);
  }
}

// Gradients are where users look for them: views of the buckets, and sparse ones.
void Reducer::Impl::settle_gradients(const Backward& backward, const std::vector<bool>& is_used) {
  for (size_t i = 0; i < tensors_.trained.size(); ++i) {
    at::Tensor tensor = tensors_.trained[i].tensor;
    const bool is_kept = is_used.empty() || is_used[i];
    if (tensors_.trained[i].has_sparse_gradient) {
      const at::Tensor own = backward.is_shadow ? at::Tensor() : tensor.grad();
      const at::Tensor sum = reduce_sparse(group_, own, tensor, divisor());
      if (is_kept && !backward.is_shadow) {
        tensor.mutable_grad() = sum;
      }
    } else if (is_kept && optimizer_ == nullptr && !backward.is_shadow &&
               !tensor.grad().defined()) {
      tensor.mutable_grad() = memory_->view(i);
    }
  }
}

void Reducer::Impl::learn_from_first_step(const Backward& backward) {
  is_first_ = false;
  is_rebuild_due_ = true;
  expected_fires_ = backward.num_fired;
  if (!options_.static_graph) {
    for (int& fires : expected_fires_) {
      fires = std::max(fires, 1);
    }
  }
  // The order of the last gradient of each; those without one stay at the end.
  std::vector<size_t> order;
  std::vector<bool> is_listed(tensors_.trained.size(), false);
  for (auto next = backward.fired_order.rbegin(); next != backward.fired_order.rend(); ++next) {
    if (!is_listed[*next]) {
      is_listed[*next] = true;
      order.push_back(*next);
    }
  }
  std::reverse(order.begin(), order.end());
  for (const size_t i : arrival_order_) {
    if (!is_listed[i]) {
      order.push_back(i);
    }
  }
  arrival_order_ = order;
}

void Reducer::Impl::record_times(const Backward& backward, Clock::time_point waited_from) {
  const Clock::time_point now = Clock::now();
  times_ = {.step = step_,
            .backward = now - backward.began,
            .copy_in = backward.copy_in,
            .reduce = backward.clock->total(),
            .wait = now - waited_from};
}

}  // namespace lockstep

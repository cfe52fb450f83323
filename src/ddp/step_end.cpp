// The end of a synchronised step, when no more gradients will come; see reducer_impl.h.

#include <algorithm>

#include <ATen/ops/zeros.h>
#include <c10/util/ScopeExit.h>

#include <lockstep/base/error.h>

#include "ddp/reduce_clock.h"
#include "ddp/reducer_impl.h"
#include "ddp/sparse_reduce.h"

namespace lockstep {

// At the end of a step all ranks learn the largest of each of these numbers.
struct Reducer::Impl::Verdict {
  // From Missing on: a parameter and a rank, packed so that the first parameter is the largest
  // number; 0 stands for none.
  enum Field { Step, NegativeStep, Missing, Repeated, Changed, NumFields };

  at::Tensor numbers;  // int64; with find_unused_parameters, a 1 for each used parameter follows
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

bool Reducer::Impl::maps_used() const {
  return options_.find_unused_parameters || (options_.static_graph && is_first_);
}

void Reducer::Impl::complete() {
  const c10::AutoGradMode no_grad(false);
  const auto end = c10::make_scope_exit([this] {  // also if anything below throws
    memory_->let_go();
    backward_ = {};
  });
  const auto untouched = add_missing_parts();
  const base::Clock::time_point waited_from = base::Clock::now();
  backward_.is_at_end = true;
  send_full_buckets();
  Verdict verdict = make_verdict();
  ++step_;
  next_shard_ = 0;
  has_forwarded_ = false;

  verdict.work.wait();
  const std::vector<bool> is_used = used_parameters(verdict);
  while (backward_.num_finished < backward_.works.size()) {
    finish_bucket(backward_.num_finished++, is_used);
  }
  record_times(waited_from);
  judge(verdict);
  for (const auto& [i, values] : untouched) {
    if (!is_used[i]) {
      at::Tensor view = memory_->view(i);
      view.copy_(values);
    }
  }
  settle_gradients(is_used);
  if (is_first_) {
    static_unused_ = is_used;
    static_unused_.flip();
    learn_from_first_step();
  }
  was_used_.assign(tensors_.trained.size(), false);
  if (tuner_ && !tuner_->is_done() && tuner_->record(group_, times_.backward)) {
    is_rebuild_due_ = true;
  }
}

// Returns the gradients of parameters that this rank did not reach: if no other did, they get them
// back as they were.
std::vector<std::pair<size_t, at::Tensor>> Reducer::Impl::add_missing_parts() {
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
  return untouched;
}

// Returns which parameters any rank used, or nothing if all of them are known to be used.
std::vector<bool> Reducer::Impl::used_parameters(const Verdict& verdict) const {
  std::vector<bool> is_used;
  if (maps_used()) {
    const int64_t* used = verdict.data() + Verdict::NumFields;
    is_used.assign(used, used + tensors_.trained.size());
  } else if (options_.static_graph) {
    is_used = static_unused_;
    is_used.flip();
  }
  return is_used;
}

Reducer::Impl::Verdict Reducer::Impl::make_verdict() {
  const size_t count = tensors_.trained.size();
  const size_t num_used = maps_used() ? count : 0;
  Verdict verdict{at::zeros({static_cast<int64_t>(Verdict::NumFields + num_used)}, at::kLong), {}};
  int64_t* const numbers = verdict.data();
  numbers[Verdict::Step] = step_ + 1;
  numbers[Verdict::NegativeStep] = -(step_ + 1);
  const auto blame = [&](size_t parameter) {
    return pack_blame(parameter, count, group_.rank(), group_.size());
  };
  for (size_t i = 0; i < count && !backward_.is_shadow; ++i) {
    const bool is_used = backward_.num_fired[i] > 0 || was_used_[i];
    if (num_used > 0) {
      numbers[Verdict::NumFields + i] = is_used;
    }
    const bool may_be_unused = options_.find_unused_parameters || options_.static_graph;
    if (!is_used && !may_be_unused) {
      numbers[Verdict::Missing] = std::max(numbers[Verdict::Missing], blame(i));
    }
    if (options_.static_graph && !is_first_ && backward_.num_fired[i] != expected_fires_[i]) {
      numbers[Verdict::Changed] = std::max(numbers[Verdict::Changed], blame(i));
    }
  }
  if (backward_.repeated) {
    numbers[Verdict::Repeated] = blame(*backward_.repeated);
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
void Reducer::Impl::settle_gradients(const std::vector<bool>& is_used) {
  for (size_t i = 0; i < tensors_.trained.size(); ++i) {
    at::Tensor tensor = tensors_.trained[i].tensor;
    const bool is_kept = is_used.empty() || is_used[i];
    if (tensors_.trained[i].has_sparse_gradient) {
      const at::Tensor own = backward_.is_shadow ? at::Tensor() : tensor.grad();
      const at::Tensor sum = ddp::reduce_sparse(group_, own, tensor, divisor());
      if (is_kept && !backward_.is_shadow) {
        tensor.mutable_grad() = sum;
      }
    } else if (is_kept && optimizer_ == nullptr && !backward_.is_shadow &&
               !tensor.grad().defined()) {
      tensor.mutable_grad() = memory_->view(i);
    }
  }
}

void Reducer::Impl::learn_from_first_step() {
  is_first_ = false;
  is_rebuild_due_ = true;
  expected_fires_ = backward_.num_fired;
  if (!options_.static_graph) {
    for (int& fires : expected_fires_) {
      fires = std::max(fires, 1);
    }
  }
  // The order of the last gradient of each; those without one stay at the end.
  std::vector<size_t> order;
  std::vector<bool> is_listed(tensors_.trained.size(), false);
  for (auto next = backward_.fired_order.rbegin(); next != backward_.fired_order.rend(); ++next) {
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

void Reducer::Impl::record_times(base::Clock::time_point waited_from) {
  const base::Clock::time_point now = base::Clock::now();
  times_ = {.step = step_,
            .backward = now - backward_.began,
            .copy_in = backward_.copy_in,
            .reduce = backward_.clock->total(),
            .wait = now - waited_from};
}

}  // namespace lockstep

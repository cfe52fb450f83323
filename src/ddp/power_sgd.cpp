#include <algorithm>
#include <cmath>
#include <deque>
#include <unordered_map>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/round.h"
#include "ddp/device/device_low_rank.h"
#include "ddp/device/device_path.h"
#include "ddp/hook_memory.h"
#include "ddp/power_sgd_hook.h"

namespace lockstep::ddp {
namespace {

// The gradient's memory as a matrix: size(0) rows, or for a layout in which another dimension is
// the outermost, as many as that one has. Undefined for vectors and for layouts with gaps.
at::Tensor as_matrix(const at::Tensor& gradient) {
  if (gradient.dim() < 2 || gradient.numel() == 0 || !gradient.is_non_overlapping_and_dense()) {
    return {};
  }
  int64_t outermost = 0;
  for (int64_t i = 1; i < gradient.dim() && !gradient.is_contiguous(); ++i) {
    if (gradient.stride(i) > gradient.stride(outermost)) {
      outermost = i;
    }
  }
  const int64_t num_columns = gradient.numel() / gradient.size(outermost);
  return gradient.as_strided({gradient.size(outermost), num_columns}, {num_columns, 1});
}

class PowerSgdHook : public CommHook {
 public:
  PowerSgdHook(PowerSgdOptions options, FillRows fill_rows)
      : options_(options), fill_rows_(std::move(fill_rows)) {}

  Work start(const GradBucket& bucket, Group& group) override;
  void finish(const GradBucket& bucket, Group& group) override;

 private:
  // What stays from step to step, whatever bucket the parameter is in.
  struct Memory {
    at::Tensor parameter;  // keeps the address, which is the key, from being used again
    at::Tensor q_rows;     // undefined: none yet
    at::Tensor error;      // undefined: nothing was left out
    at::Tensor spare;      // on a device: drawn with q_rows, for rows of it that become empty
  };

  struct Matrix {
    Memory* memory = nullptr;
    at::Tensor gradient;  // rows x columns; M with the error added until finish()
    at::Tensor p_rows;    // in the piece of the bucket: rank x rows
    at::Tensor q_rows;    // there too: rank x columns
    bool is_finite = true;
    at::Tensor is_finite_there;  // on a device instead; the host does not know it
  };

  // A bucket between start() and finish().
  struct Pending {
    size_t index = 0;
    std::vector<Matrix> matrices;
    std::vector<std::pair<at::Tensor, at::Tensor>> whole;  // (gradient, its place in the piece)
    at::Tensor ps_and_whole;                               // what is summed first
    at::Tensor qs;                                         // what is averaged then
    Work work;
    bool has_sent_qs = false;
  };

  int64_t rank_of(const at::Tensor& matrix) const {
    return std::min({options_.rank, matrix.size(0), matrix.size(1)});
  }
  bool pays(const at::Tensor& matrix) const {
    const auto sent = static_cast<double>((matrix.size(0) + matrix.size(1)) * rank_of(matrix));
    return sent * options_.min_compression_rate < static_cast<double>(matrix.numel());
  }

  Pending plan(const GradBucket& bucket);
  void place(Pending& pending, Group& group);
  void prepare(Matrix& matrix, std::string_view name);
  void draw(Memory& memory, bool is_new, std::string_view name);
  static bool add_error(const at::Tensor& matrix, const Memory& memory);
  Work start_plain(const GradBucket& bucket, Group& group);
  void send_qs(Group& group);
  void report(const GradBucket& bucket, const Pending& pending);

  const PowerSgdOptions options_;
  const FillRows fill_rows_;
  std::unordered_map<const void*, Memory> memories_;
  std::deque<Pending> pending_;
  HookMemory pieces_;
  HookSteps steps_;
  int64_t num_elements_ = 0;  // of the first compressed step's buckets so far
  int64_t num_sent_ = 0;
  bool is_reported_ = false;
};

Work PowerSgdHook::start(const GradBucket& bucket, Group& group) {
  const c10::NoGradGuard no_grad;
  if (!pending_.empty() && bucket.index <= pending_.back().index) {
    pending_.clear();  // of a step that failed
  }
  if (steps_.enter(group)) {
    for (auto& [key, memory] : memories_) {
      memory.q_rows.reset();  // a rank that is new here has none
    }
  }
  const bool is_plain =
      steps_.count() < options_.start_step || group.size() == 1 ||
      (bucket.buffer.scalar_type() != at::kFloat && bucket.buffer.scalar_type() != at::kDouble);
  Pending pending = is_plain ? Pending{.index = bucket.index} : plan(bucket);
  if (pending.matrices.empty()) {
    pending.whole.clear();
    pending.work = start_plain(bucket, group);
  } else {
    place(pending, group);
    for (const auto& [gradient, place] : pending.whole) {
      place.copy_(gradient);
    }
    for (const Matrix& matrix : pending.matrices) {
      at::Tensor p_rows = matrix.p_rows;
      at::mm_out(p_rows, matrix.memory->q_rows, matrix.gradient.t());
    }
    pending.work = group.all_reduce_async(pending.ps_and_whole, {.op = ReduceOp::Sum});
  }
  if (!is_plain) {
    report(bucket, pending);
  }
  if (bucket.is_last) {
    steps_.advance();
  }
  pending_.push_back(std::move(pending));
  return pending_.back().work;
}

Work PowerSgdHook::start_plain(const GradBucket& bucket, Group& group) {
  // An earlier, larger group may have left something out.
  for (size_t i = 0; i < bucket.gradients.size() && !memories_.empty(); ++i) {
    const auto found = memories_.find(bucket.parameters[i].unsafeGetTensorImpl());
    if (found != memories_.end()) {
      add_error(as_matrix(bucket.gradients[i]), found->second);
      found->second.error.reset();
    }
  }
  if (group.size() == 1 || bucket.buffer.numel() == 0) {
    return {};
  }
  return group.all_reduce_async(bucket.buffer, {.op = ReduceOp::Average});
}

// Sorts the gradients into matrices and the rest, and makes each M and its Q.
PowerSgdHook::Pending PowerSgdHook::plan(const GradBucket& bucket) {
  LOCKSTEP_CHECK(bucket.parameters.size() == bucket.gradients.size() &&
                     bucket.names.size() == bucket.gradients.size(),
                 "a name and a parameter for each of {} gradients", bucket.gradients.size());
  Pending pending{.index = bucket.index};
  for (size_t i = 0; i < bucket.gradients.size(); ++i) {
    const at::Tensor& gradient = bucket.gradients[i];
    const at::Tensor matrix = as_matrix(gradient);
    if (!matrix.defined() || !pays(matrix)) {
      pending.whole.emplace_back(gradient, at::Tensor());
      continue;
    }
    Memory& memory = memories_[bucket.parameters[i].unsafeGetTensorImpl()];
    memory.parameter = bucket.parameters[i];
    pending.matrices.push_back({.memory = &memory, .gradient = matrix});
    prepare(pending.matrices.back(), bucket.names[i]);
  }
  return pending;
}

// Returns false if there is no error for a matrix like this one.
bool PowerSgdHook::add_error(const at::Tensor& matrix, const Memory& memory) {
  if (!matrix.defined() || !memory.error.defined() || memory.error.sizes() != matrix.sizes() ||
      memory.error.scalar_type() != matrix.scalar_type()) {
    return false;
  }
  matrix.add_(memory.error);
  return true;
}

void PowerSgdHook::prepare(Matrix& matrix, std::string_view name) {
  Memory& memory = *matrix.memory;
  const at::TensorOptions options = matrix.gradient.options();
  const at::IntArrayRef sizes = matrix.gradient.sizes();
  if (!add_error(matrix.gradient, memory) && options_.use_error_feedback) {
    memory.error = at::zeros(sizes, options);
  }
  const int64_t rank = rank_of(matrix.gradient);
  const bool is_new = !options_.warm_start || !memory.q_rows.defined() ||
                      memory.q_rows.size(0) != rank || memory.q_rows.size(1) != sizes[1] ||
                      memory.q_rows.scalar_type() != matrix.gradient.scalar_type();
  if (is_new) {
    memory.q_rows = at::zeros({rank, sizes[1]}, options);
  }
  draw(memory, is_new, name);
}

// Fills the rows of Q that are empty, which are all if it is new, and makes them orthonormal.
void PowerSgdHook::draw(Memory& memory, bool is_new, std::string_view name) {
  const RowSeed seed{.seed = options_.seed, .step = steps_.count(), .name = name};
  if (!takes_device_path(memory.q_rows.device())) {
    fill_rows_(memory.q_rows, seed);
    orthonormalize_rows(memory.q_rows, options_.orthogonalization_epsilon);
    return;
  }
  if (is_new) {
    const at::Tensor drawn =
        at::zeros(memory.q_rows.sizes(), memory.q_rows.options().device(at::kCPU));
    fill_rows_(drawn, seed);
    memory.spare = upload(drawn, memory.q_rows.device());
  }
  queue_fill_empty_rows(memory.q_rows, memory.spare);
  queue_orthonormalize_rows(memory.q_rows, options_.orthogonalization_epsilon);
}

// Gives everything its place in the bucket's piece: Ps, what goes whole, Qs.
void PowerSgdHook::place(Pending& pending, Group& group) {
  constexpr int64_t kAlignElements = 16;  // a cache line and more
  int64_t num_first = 0;
  int64_t num_qs = 0;
  for (const Matrix& matrix : pending.matrices) {
    num_first += rank_of(matrix.gradient) * matrix.gradient.size(0);
    num_qs += rank_of(matrix.gradient) * matrix.gradient.size(1);
  }
  for (const auto& [gradient, unplaced] : pending.whole) {
    num_first += gradient.numel();
  }
  const int64_t begin_qs = base::rounded_up(num_first, kAlignElements);
  const at::Tensor piece = pieces_.piece(pending.index, begin_qs + num_qs,
                                         pending.matrices.front().gradient.options(), group);
  pending.ps_and_whole = piece.narrow(0, 0, num_first);
  pending.qs = piece.narrow(0, begin_qs, num_qs);
  int64_t next = 0;
  int64_t next_q = 0;
  for (Matrix& matrix : pending.matrices) {
    const int64_t rank = rank_of(matrix.gradient);
    const int64_t num_p = rank * matrix.gradient.size(0);
    const int64_t num_q = rank * matrix.gradient.size(1);
    matrix.p_rows = pending.ps_and_whole.narrow(0, next, num_p).view({rank, -1});
    matrix.q_rows = pending.qs.narrow(0, next_q, num_q).view({rank, -1});
    next += num_p;
    next_q += num_q;
  }
  for (auto& [gradient, place] : pending.whole) {
    place = pending.ps_and_whole.narrow(0, next, gradient.numel()).view(gradient.sizes());
    next += gradient.numel();
  }
}

// The first finish() of a step calls it: while one bucket's Qs travel, the next ones are computed.
void PowerSgdHook::send_qs(Group& group) {
  for (Pending& pending : pending_) {
    if (pending.matrices.empty() || pending.has_sent_qs) {
      continue;
    }
    pending.work.wait();
    for (Matrix& matrix : pending.matrices) {
      if (takes_device_path(matrix.p_rows.device())) {
        matrix.is_finite_there =
            queue_orthonormalize_rows(matrix.p_rows, options_.orthogonalization_epsilon);
      } else {
        matrix.is_finite = orthonormalize_rows(matrix.p_rows, options_.orthogonalization_epsilon);
      }
      at::Tensor q_rows = matrix.q_rows;
      at::mm_out(q_rows, matrix.p_rows, matrix.gradient);
    }
    pending.work = group.all_reduce_async(pending.qs, {.op = ReduceOp::Average});
    pending.has_sent_qs = true;
  }
}

void PowerSgdHook::finish(const GradBucket& bucket, Group& group) {
  const c10::NoGradGuard no_grad;
  LOCKSTEP_CHECK(!pending_.empty() && pending_.front().index == bucket.index,
                 "bucket {} is finished in the order in which it started", bucket.index);
  send_qs(group);
  Pending& pending = pending_.front();
  pending.work.wait();
  for (const Matrix& matrix : pending.matrices) {
    Memory& memory = *matrix.memory;
    if (matrix.is_finite_there.defined()) {
      queue_replace_by_product(matrix.gradient, memory.error, matrix.p_rows, matrix.q_rows,
                               matrix.is_finite_there);
    } else {
      replace_by_product(matrix.gradient, memory.error, matrix.p_rows, matrix.q_rows);
    }
    if (options_.warm_start) {
      memory.q_rows.copy_(matrix.q_rows);
    }
    if (!matrix.is_finite) {
      memory.error.reset();
    }
  }
  for (const auto& [gradient, sum] : pending.whole) {
    at::Tensor average = gradient;
    at::div_out(average, sum, at::Scalar(group.size()));
  }
  pending_.pop_front();
}

void PowerSgdHook::report(const GradBucket& bucket, const Pending& pending) {
  if (is_reported_) {
    return;
  }
  num_elements_ += bucket.buffer.numel();
  num_sent_ += pending.matrices.empty() ? bucket.buffer.numel()
                                        : pending.ps_and_whole.numel() + pending.qs.numel();
  if (bucket.is_last) {
    log::info("ddp", "power_sgd: from step {} on {} elements are sent instead of {}",
              steps_.count(), num_sent_, num_elements_);
    is_reported_ = true;
  }
}

void check_options(const PowerSgdOptions& options) {
  if (options.rank < 1) {
    throw UsageError("power_sgd: rank = {} must be at least 1", options.rank);
  }
  const bool remembers = options.use_error_feedback || options.warm_start;
  if (options.start_step < 2 && remembers) {
    throw UsageError(
        "power_sgd: start_step = {} must be at least 2 with {}; let the first steps average, or "
        "turn it off",
        options.start_step, options.use_error_feedback ? "use_error_feedback" : "warm_start");
  }
  if (options.start_step < 0) {
    throw UsageError("power_sgd: start_step = {} must not be negative", options.start_step);
  }
  if (!std::isfinite(options.min_compression_rate) || options.min_compression_rate < 0) {
    throw UsageError("power_sgd: min_compression_rate = {} must be a number from 0 on",
                     options.min_compression_rate);
  }
  if (!std::isfinite(options.orthogonalization_epsilon) || options.orthogonalization_epsilon < 0) {
    throw UsageError("power_sgd: orthogonalization_epsilon = {} must be a number from 0 on",
                     options.orthogonalization_epsilon);
  }
}

}  // namespace

std::shared_ptr<CommHook> make_power_sgd(PowerSgdOptions options, FillRows fill_rows) {
  check_options(options);
  return std::make_shared<PowerSgdHook>(options, std::move(fill_rows));
}

}  // namespace lockstep::ddp

namespace lockstep {

std::shared_ptr<CommHook> power_sgd(PowerSgdOptions options) {
  return ddp::make_power_sgd(options, ddp::fill_empty_rows);
}

}  // namespace lockstep

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/lbfgs.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "comm/start/host_cores.h"
#include "ddp/bucket_plan.h"
#include "ddp/model_check.h"
#include "ddp/reducer_impl.h"
#include "ddp/verify.h"

namespace lockstep {
namespace {

// All that decides which collectives a rank calls, and when. What is ignored shows in the model.
std::vector<std::string> describe(const DdpOptions& options) {
  static constexpr const char* kOverlaps[] = {"Auto", "Always", "Never"};
  return {fmt::format("bucket_bytes = {}", options.bucket_bytes),
          fmt::format("first_bucket_bytes = {}", options.first_bucket_bytes),
          fmt::format("overlap = {}", kOverlaps[static_cast<int>(options.overlap)]),
          fmt::format("find_unused_parameters = {}", options.find_unused_parameters),
          fmt::format("static_graph = {}", options.static_graph),
          fmt::format("broadcast_buffers = {}", options.broadcast_buffers),
          fmt::format("init_sync = {}", options.init_sync),
          fmt::format("shards = {}", options.shards),
          fmt::format("verify_every = {}", options.verify_every),
          options.comm_hook ? "a comm_hook" : "no comm_hook"};
}

}  // namespace

Reducer::Impl::Impl(std::shared_ptr<torch::nn::Module> module, Group group, DdpOptions options)
    : module_(std::move(module)), group_(std::move(group)), options_(std::move(options)) {
  if (group_.size() > 1) {
    ddp::check_same_lines(group_, describe(options_),
                          {.what = "ddp: the options differ between ranks",
                           .advice = "give every rank the same DdpOptions"});
  }
  check_options();
  tensors_ = ddp::tensors_of(*module_, options_.ignored);
  set_shards();
  if (group_.size() > 1) {
    ddp::NamedTensors everything = tensors_.parameters;
    everything.insert(everything.end(), tensors_.buffers.begin(), tensors_.buffers.end());
    ddp::check_same_model(group_, everything);
    if (options_.init_sync) {
      const c10::AutoGradMode no_grad(false);
      ddp::broadcast_tensors(group_, everything, 0, 25 << 20);
    }
    if (options_.broadcast_buffers) {
      buffers_ = ddp::BufferSync(group_, tensors_.buffers);
    }
  }
}

Reducer::Impl::~Impl() {
  for (const auto& [node, key] : hooks_) {
    node->del_post_hook(key);
  }
}

void Reducer::Impl::check_options() const {
  if (options_.bucket_bytes < 0 || options_.first_bucket_bytes < 1) {
    throw UsageError("ddp: bucket_bytes = {} and first_bucket_bytes = {} must be at least 1",
                     options_.bucket_bytes, options_.first_bucket_bytes);
  }
  if (options_.verify_every < 0) {
    throw UsageError("ddp: verify_every = {} must not be negative", options_.verify_every);
  }
}

void Reducer::Impl::set_shards() {
  const int size = group_.size();
  num_local_shards_ = 1;
  if (options_.shards == 0) {
    return;
  }
  if (!std::has_single_bit(static_cast<unsigned>(std::max(options_.shards, 0))) ||
      options_.shards % size != 0) {
    throw UsageError(
        "ddp: shards = {} must be a power of two and a multiple of the group's size {}",
        options_.shards, size);
  }
  num_local_shards_ = options_.shards / size;
  if (num_local_shards_ == 1) {
    return;
  }
  for (const ddp::TrainedParameter& parameter : tensors_.trained) {
    const auto type = parameter.tensor.scalar_type();
    if (parameter.has_sparse_gradient || (type != at::kFloat && type != at::kDouble)) {
      throw UsageError(
          "ddp: parameter '{}' has {} gradients; several shards per rank need dense float32 or "
          "float64 ones",
          parameter.name, parameter.has_sparse_gradient ? "sparse" : c10::toString(type));
    }
  }
}

// A group of one with nothing special to do costs nothing: no memory, no hooks.
bool Reducer::Impl::is_needed() const {
  return group_.size() > 1 || num_local_shards_ > 1 || options_.comm_hook || optimizer_;
}

// The order of collectives depends on it, so that all ranks must come to the same answer: it is
// made of what all of them may use together, and not of one rank's binding.
void Reducer::Impl::choose_overlap() {
  if (options_.overlap != Overlap::Auto || group_.backend_name() != "shm") {
    overlaps_ = options_.overlap != Overlap::Never;
    return;
  }
  const int num_cores = comm::host_cores(group_).front().num_cores;
  overlaps_ = group_.size() < num_cores;
  log::debug("ddp", "buckets are reduced {}: {} ranks, {} cores",
             overlaps_ ? "while backward computes" : "at the end of backward", group_.size(),
             num_cores);
}

void Reducer::Impl::start() {
  if (memory_ || !is_needed()) {
    return;
  }
  choose_overlap();
  memory_.emplace(group_, tensors_.trained,
                  ddp::GradientMemoryOptions{.allows_large = num_local_shards_ == 1});
  arrival_order_.resize(tensors_.trained.size());
  std::iota(arrival_order_.rbegin(), arrival_order_.rend(), size_t{0});  // last layer first
  was_used_.assign(tensors_.trained.size(), false);
  if (num_local_shards_ > 1) {
    shard_sum_.emplace(tensors_.trained.size());
  }
  if (options_.bucket_bytes == kAutoBucketBytes) {
    int64_t bytes = 0;
    for (const ddp::TrainedParameter& parameter : tensors_.trained) {
      bytes += static_cast<int64_t>(parameter.tensor.nbytes());
    }
    tuner_.emplace(bytes);
  }
  lay_out_buckets();
  watch_gradients();
}

ddp::BucketLimits Reducer::Impl::limits() const {
  return {.bucket_bytes = tuner_ ? tuner_->bucket_bytes() : options_.bucket_bytes,
          .first_bucket_bytes = options_.first_bucket_bytes,
          .alone_bytes = num_local_shards_ == 1 ? ddp::kLargeGradientBytes : INT64_MAX};
}

void Reducer::Impl::lay_out_buckets() {
  const c10::AutoGradMode no_grad(false);
  std::vector<ddp::GradientSize> sizes;
  std::vector<size_t> dense_order;
  for (const ddp::TrainedParameter& parameter : tensors_.trained) {
    sizes.push_back(
        {static_cast<int64_t>(parameter.tensor.nbytes()), parameter.tensor.scalar_type()});
  }
  for (const size_t i : arrival_order_) {
    if (!tensors_.trained[i].has_sparse_gradient) {
      dense_order.push_back(i);
    }
  }
  memory_->lay_out(ddp::plan_buckets(sizes, dense_order, limits()));
  log::debug("ddp", "{} parameters in {} buckets", tensors_.trained.size(),
             memory_->buckets().size());
}

void Reducer::Impl::watch_gradients() {
  for (size_t i = 0; i < tensors_.trained.size(); ++i) {
    const auto node = torch::autograd::impl::grad_accumulator(tensors_.trained[i].tensor);
    auto hook = [weak = weak_from_this(), i](const torch::autograd::variable_list& outputs,
                                             const torch::autograd::variable_list&) {
      if (const auto self = weak.lock()) {
        self->on_gradient(i);
      }
      return outputs;
    };
    const auto key =
        node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(hook));
    hooks_.emplace_back(node, key);  // holding the node keeps it, and so the hook, from being made
                                     // anew
  }
}

void Reducer::Impl::begin_forward() {
  if (!memory_ || !module_->is_training() || !c10::GradMode::is_enabled()) {
    return;
  }
  const std::lock_guard lock(mutex_);
  has_ever_forwarded_ = true;
  if (backward_.is_running) {
    backward_ = {};  // it ended by an exception
    serving_.reset();
  }
  if (no_sync_depth_ > 0 || has_forwarded_) {
    return;
  }
  has_forwarded_ = true;
  ddp::check_unchanged(*module_, options_.ignored, tensors_);
  const bool is_due = options_.verify_every > 0 && step_ > 0 && step_ % options_.verify_every == 0;
  if (is_due && !join_) {
    ddp::verify_equal(group_, tensors_.parameters, step_);
  }
  if (join_) {
    announce(true);
  }
  const c10::AutoGradMode no_grad(false);
  buffers_.broadcast(group_, join_ ? join_->root : 0);
}

void Reducer::Impl::end_forward(const std::vector<at::Tensor>& outputs) {
  if (!memory_ || !c10::GradMode::is_enabled()) {
    return;
  }
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.requires_grad()) {
      output.register_hook([weak = weak_from_this()](const at::Tensor&) {
        if (const auto self = weak.lock()) {
          self->on_output();
        }
      });
    }
  }
}

void Reducer::Impl::begin_no_sync() {
  if (num_local_shards_ > 1) {
    throw UsageError(
        "ddp: no_sync() with several shards per rank: the shards of a step are summed by "
        "themselves; use more shards instead");
  }
  ++no_sync_depth_;
}

void Reducer::Impl::check_optimizer(const torch::optim::Optimizer& optimizer) const {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw UsageError("ddp: LBFGS looks at all parameters at once: it cannot step in backward");
  }
  for (const auto& param_group : optimizer.param_groups()) {
    for (const at::Tensor& tensor : param_group.params()) {
      const bool is_ours =
          std::any_of(tensors_.trained.begin(), tensors_.trained.end(),
                      [&](const auto& parameter) { return parameter.tensor.is_same(tensor); });
      if (!is_ours) {
        throw UsageError(
            "ddp: step_in_backward: the optimizer holds a parameter of shape {} that is not "
            "trained by this wrapper",
            fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")));
      }
    }
  }
}

void Reducer::Impl::step_in_backward(torch::optim::Optimizer& optimizer) {
  check_optimizer(optimizer);
  for (const ddp::TrainedParameter& parameter : tensors_.trained) {
    if (parameter.has_sparse_gradient) {
      throw UsageError("ddp: step_in_backward: parameter '{}' has sparse gradients",
                       parameter.name);
    }
  }
  optimizer_ = &optimizer;
  start();
}

void Reducer::Impl::set_comm_hook(std::shared_ptr<CommHook> hook) {
  const std::unique_lock lock(mutex_);
  if (backward_.is_running) {
    throw UsageError("ddp: set_comm_hook() inside a backward; change it between two steps");
  }
  options_.comm_hook = std::move(hook);
  start();
}

double Reducer::Impl::clip_grad_norm(double max_norm) {
  if (max_norm <= 0) {
    throw UsageError("ddp: clip_grad_norm: max_norm = {} must be positive", max_norm);
  }
  if (optimizer_ != nullptr) {
    throw UsageError("ddp: clip_grad_norm: step_in_backward has used the gradients already");
  }
  const c10::AutoGradMode no_grad(false);
  const auto values_of = [](const ddp::TrainedParameter& parameter) {
    const at::Tensor& gradient = parameter.tensor.grad();
    return gradient.defined() && gradient.is_sparse() ? gradient._values() : gradient;
  };
  double sum = 0;
  for (const ddp::TrainedParameter& parameter : tensors_.trained) {
    if (const at::Tensor values = values_of(parameter); values.defined()) {
      const double norm = at::linalg_vector_norm(values, 2).item<double>();
      sum += norm * norm;
    }
  }
  const double norm = std::sqrt(sum);
  const double scale = max_norm / (norm + 1e-6);
  if (scale < 1) {
    for (const ddp::TrainedParameter& parameter : tensors_.trained) {
      if (at::Tensor values = values_of(parameter); values.defined()) {
        values.mul_(scale);
      }
    }
  }
  return norm;
}

void Reducer::Impl::verify() {
  ddp::verify_equal(group_, tensors_.parameters, step_);
}

void Reducer::Impl::rebind(Group group) {
  const std::lock_guard lock(mutex_);
  group_ = std::move(group);
  set_shards();
  backward_ = {};
  next_shard_ = 0;
  has_forwarded_ = false;
  join_.reset();
  if (!memory_) {
    start();
    return;
  }
  choose_overlap();
  memory_->rebind(group_);
  buffers_.rebind(group_);
  // Some ranks may have ended the step in which another one was lost.
  const at::Tensor steps = at::full({1}, step_, at::kLong);
  group_.all_reduce(steps, {.op = ReduceOp::Max});
  step_ = steps.item<int64_t>();
}

StepTimes Reducer::Impl::last_step() const {
  const std::lock_guard lock(mutex_);
  return times_;
}

std::vector<int64_t> Reducer::Impl::bucket_sizes_bytes() const {
  std::vector<int64_t> sizes;
  if (memory_) {
    for (const GradBucket& bucket : memory_->buckets()) {
      int64_t bytes = 0;
      for (const at::Tensor& parameter : bucket.parameters) {
        bytes += static_cast<int64_t>(parameter.nbytes());
      }
      sizes.push_back(bytes);
    }
  }
  return sizes;
}

Reducer::Reducer(std::shared_ptr<torch::nn::Module> module, Group group, DdpOptions options)
    : impl_(std::make_shared<Impl>(std::move(module), std::move(group), std::move(options))) {
  impl_->start();
}

Reducer::~Reducer() = default;

void Reducer::begin_forward() {
  impl_->begin_forward();
}
void Reducer::end_forward(const std::vector<at::Tensor>& outputs) {
  impl_->end_forward(outputs);
}
void Reducer::step_in_backward(torch::optim::Optimizer& optimizer) {
  impl_->step_in_backward(optimizer);
}
void Reducer::set_comm_hook(std::shared_ptr<CommHook> hook) {
  impl_->set_comm_hook(std::move(hook));
}
double Reducer::clip_grad_norm(double max_norm) {
  return impl_->clip_grad_norm(max_norm);
}
void Reducer::verify() {
  impl_->verify();
}
void Reducer::rebind(Group group) {
  impl_->rebind(std::move(group));
}
int Reducer::num_local_shards() const {
  return impl_->num_local_shards();
}
int Reducer::first_shard() const {
  return impl_->first_shard();
}
StepTimes Reducer::last_step() const {
  return impl_->last_step();
}
std::vector<int64_t> Reducer::bucket_sizes_bytes() const {
  return impl_->bucket_sizes_bytes();
}

NoSync::NoSync(std::shared_ptr<Reducer> reducer) : reducer_(std::move(reducer)) {
  reducer_->impl_->begin_no_sync();
}

NoSync& NoSync::operator=(NoSync&& other) noexcept {
  NoSync old(std::move(*this));  // ends at the end of this scope
  reducer_ = std::move(other.reducer_);
  return *this;
}

NoSync::~NoSync() {
  if (reducer_) {
    reducer_->impl_->end_no_sync();
  }
}

}  // namespace lockstep

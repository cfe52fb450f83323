// What users call; see reducer_impl.h for the rest.

#include <algorithm>

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>
#include <torch/optim/lbfgs.h>

#include <lockstep/base/error.h>

#include "ddp/device/device_path.h"
#include "ddp/model_check.h"
#include "ddp/reducer_impl.h"
#include "ddp/verify.h"

namespace lockstep {
namespace {

constexpr double kClipEpsilon = 1e-6;  // as torch::nn::utils::clip_grad_norm_

}  // namespace

Reducer::Reducer(std::shared_ptr<torch::nn::Module> module, Group group, DdpOptions options)
    : impl_(std::make_shared<Impl>(std::move(module), std::move(group), std::move(options))) {
  impl_->start();
}

void Reducer::begin_forward() {
  if (!impl_->memory_ || !impl_->module_->is_training() || !c10::GradMode::is_enabled()) {
    return;
  }
  const std::lock_guard lock(impl_->mutex_);
  impl_->has_ever_forwarded_ = true;
  if (impl_->backward_.is_running) {
    impl_->backward_ = {};  // it ended by an exception
    impl_->serving_.reset();
  }
  if (impl_->no_sync_depth_ > 0 || impl_->has_forwarded_) {
    return;
  }
  impl_->has_forwarded_ = true;
  ddp::check_unchanged(*impl_->module_, impl_->options_.ignored, impl_->tensors_);
  const bool is_due = impl_->options_.verify_every > 0 && impl_->step_ > 0 &&
                      impl_->step_ % impl_->options_.verify_every == 0;
  if (is_due && !impl_->join_) {
    ddp::verify_equal(impl_->group_, impl_->tensors_.parameters, impl_->step_);
  }
  if (impl_->join_) {
    impl_->announce(true);
  }
  const c10::AutoGradMode no_grad(false);
  impl_->buffers_.broadcast(impl_->group_, impl_->join_ ? impl_->join_->root : 0);
}

void Reducer::end_forward(const std::vector<at::Tensor>& outputs) {
  if (!impl_->memory_ || !c10::GradMode::is_enabled()) {
    return;
  }
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.requires_grad()) {
      output.register_hook([weak = impl_->weak_from_this()](const at::Tensor&) {
        if (const auto self = weak.lock()) {
          self->on_output();
        }
      });
    }
  }
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

void Reducer::step_in_backward(torch::optim::Optimizer& optimizer) {
  impl_->check_optimizer(optimizer);
  for (const ddp::TrainedParameter& parameter : impl_->tensors_.trained) {
    if (parameter.has_sparse_gradient) {
      throw UsageError("ddp: step_in_backward: parameter '{}' has sparse gradients",
                       parameter.name);
    }
  }
  impl_->optimizer_ = &optimizer;
  impl_->start();
}

void Reducer::set_comm_hook(std::shared_ptr<CommHook> hook) {
  const std::unique_lock lock(impl_->mutex_);
  if (impl_->backward_.is_running) {
    throw UsageError("ddp: set_comm_hook() inside a backward; change it between two steps");
  }
  impl_->options_.comm_hook = std::move(hook);
  impl_->start();
}

std::vector<at::Tensor> Reducer::Impl::gradients_to_clip() const {
  if (optimizer_ != nullptr) {
    throw UsageError("ddp: clip_grad_norm: step_in_backward has used the gradients already");
  }
  std::vector<at::Tensor> gradients;
  for (const ddp::TrainedParameter& parameter : tensors_.trained) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (gradient.defined()) {
      gradients.push_back(gradient.is_sparse() ? gradient._values() : gradient);
    }
  }
  return gradients;
}

double Reducer::clip_grad_norm(double max_norm) {
  if (max_norm <= 0) {
    throw UsageError("ddp: clip_grad_norm: max_norm = {} must be positive", max_norm);
  }
  const c10::AutoGradMode no_grad(false);
  const std::vector<at::Tensor> gradients = impl_->gradients_to_clip();
  const double norm = ddp::norm_of(gradients);
  const double scale = max_norm / (norm + kClipEpsilon);
  if (scale < 1 && !gradients.empty()) {
    at::_foreach_mul_(gradients, scale);
  }
  return norm;
}

at::Tensor Reducer::clip_grad_norm(const at::Tensor& max_norm) {
  if (max_norm.defined() && (max_norm.dim() != 0 || max_norm.scalar_type() != at::kDouble)) {
    throw UsageError(
        "ddp: clip_grad_norm: max_norm is a {} of {} dimensions; on a device it is a float64 of "
        "none",
        c10::toString(max_norm.scalar_type()), max_norm.dim());
  }
  const c10::AutoGradMode no_grad(false);
  const std::vector<at::Tensor> gradients = impl_->gradients_to_clip();
  if (gradients.empty()) {
    const at::Device device = impl_->tensors_.parameters.front().second.device();
    return at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
  }
  at::Tensor norm = ddp::queue_norm(gradients);
  if (max_norm.defined()) {
    ddp::queue_scale(gradients, (max_norm / (norm + kClipEpsilon)).clamp_max(1));
  }
  return norm;
}

void Reducer::verify() {
  ddp::verify_equal(impl_->group_, impl_->tensors_.parameters, impl_->step_);
}

void Reducer::rebind(Group group) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->group_ = std::move(group);
  impl_->set_shards();
  impl_->backward_ = {};
  impl_->next_shard_ = 0;
  impl_->has_forwarded_ = false;
  impl_->join_.reset();
  if (!impl_->memory_) {
    impl_->start();
    return;
  }
  impl_->choose_overlap();
  impl_->memory_->rebind(impl_->group_);
  impl_->buffers_.rebind(impl_->group_);
  // Some ranks may have ended the step in which another one was lost.
  const at::Tensor steps = at::full({1}, impl_->step_, at::kLong);
  impl_->group_.all_reduce(steps, {.op = ReduceOp::Max});
  impl_->step_ = steps.item<int64_t>();
}

StepTimes Reducer::last_step() const {
  const std::lock_guard lock(impl_->mutex_);
  return impl_->times_;
}

std::vector<int64_t> Reducer::bucket_sizes_bytes() const {
  std::vector<int64_t> sizes;
  if (impl_->memory_) {
    for (const GradBucket& bucket : impl_->memory_->buckets()) {
      int64_t bytes = 0;
      for (const at::Tensor& parameter : bucket.parameters) {
        bytes += static_cast<int64_t>(parameter.nbytes());
      }
      sizes.push_back(bytes);
    }
  }
  return sizes;
}

int Reducer::num_local_shards() const {
  return impl_->num_local_shards_;
}

int Reducer::first_shard() const {
  return impl_->group_.rank() * impl_->num_local_shards_;
}

NoSync Reducer::no_sync() {
  return NoSync(*this);
}

NoSync::NoSync(Reducer reducer) : reducer_(std::move(reducer)) {
  if (reducer_.impl_->num_local_shards_ > 1) {
    throw UsageError(
        "ddp: no_sync() with several shards per rank: the shards of a step are summed by "
        "themselves; use more shards instead");
  }
  ++reducer_.impl_->no_sync_depth_;
}

NoSync& NoSync::operator=(NoSync&& other) noexcept {
  NoSync old(std::move(*this));  // ends at the end of this scope
  reducer_ = std::move(other.reducer_);
  return *this;
}

NoSync::~NoSync() {
  if (reducer_.impl_) {
    --reducer_.impl_->no_sync_depth_;
  }
}

}  // namespace lockstep

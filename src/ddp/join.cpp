// Ranks with different numbers of batches: who has run out takes part in the others' steps.

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "ddp/reducer_impl.h"

namespace lockstep {

int Reducer::Impl::announce(bool is_active) {
  const at::Tensor flags = at::empty({group_.size()}, at::kLong);
  group_.all_gather(flags, at::full({1}, int64_t{is_active}, at::kLong));
  const int64_t* active = flags.const_data_ptr<int64_t>();
  const auto num_active = static_cast<int>(std::count(active, active + group_.size(), 1));
  if (num_active > 0) {
    join_->num_active = num_active;
    join_->root = static_cast<int>(std::find(active, active + group_.size(), 1) - active);
  }
  if (join_->options.throw_on_early_termination && num_active < group_.size()) {
    const auto first = std::find(active, active + group_.size(), 0) - active;
    join_.reset();
    throw UsageError("ddp: join: rank {} has run out of batches before others", first);
  }
  return num_active;
}

void Reducer::Impl::shadow_step() {
  const c10::AutoGradMode no_grad(false);
  stream_order_.join();
  buffers_.broadcast(group_, join_->root);
  start_backward_state(true);
  backward_.is_shadow = true;
  rebuild_if_due();
  expect_gradients();
  complete();
}

Join Reducer::join(JoinOptions options) {
  return Join(*this, options);
}

Join::Join(Reducer reducer, JoinOptions options) : reducer_(std::move(reducer)) {
  Reducer::Impl& impl = *reducer_.impl_;
  if (impl.num_local_shards_ > 1 || impl.optimizer_ != nullptr) {
    throw UsageError(
        "ddp: join() works neither with several shards per rank nor with "
        "step_in_backward");
  }
  const std::lock_guard lock(impl.mutex_);
  if (impl.join_) {
    throw UsageError("ddp: join() inside a join()");
  }
  impl.join_ =
      Reducer::Impl::JoinState{.options = options, .num_active = impl.group_.size(), .root = 0};
}

Join& Join::operator=(Join&& other) noexcept {
  Join old(std::move(*this));  // ends at the end of this scope
  reducer_ = std::move(other.reducer_);
  return *this;
}

Join::~Join() {
  if (reducer_.impl_) {
    reducer_.impl_->join_.reset();
  }
}

void Join::wait() {
  if (!reducer_.impl_) {
    return;
  }
  Reducer::Impl& impl = *reducer_.impl_;
  const std::lock_guard lock(impl.mutex_);
  if (!impl.join_) {
    return;
  }
  if (!impl.memory_) {  // a group of one
    impl.join_.reset();
    return;
  }
  while (impl.announce(false) > 0) {
    impl.shadow_step();
  }
  const int root = impl.join_->root;
  impl.join_.reset();
  ddp::NamedTensors everything = impl.tensors_.parameters;
  everything.insert(everything.end(), impl.tensors_.buffers.begin(), impl.tensors_.buffers.end());
  const c10::AutoGradMode no_grad(false);
  ddp::broadcast_tensors(impl.group_, everything, root, 25 << 20);
}

}  // namespace lockstep

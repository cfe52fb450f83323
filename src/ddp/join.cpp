// Ranks with different numbers of batches: who has run out takes part in the others' steps.

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "ddp/reducer_impl.h"

namespace lockstep {

void Reducer::Impl::begin_join(JoinOptions options) {
  if (num_local_shards_ > 1 || optimizer_ != nullptr) {
    throw UsageError(
        "ddp: join() works neither with several shards per rank nor with "
        "step_in_backward");
  }
  const std::lock_guard lock(mutex_);
  if (join_) {
    throw UsageError("ddp: join() inside a join()");
  }
  join_ = JoinState{.options = options, .num_active = group_.size(), .root = 0};
}

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
  buffers_.broadcast(group_, join_->root);
  start_backward_state(true);
  backward_.is_shadow = true;
  rebuild_if_due();
  expect_gradients();
  complete();
}

void Reducer::Impl::wait_for_join() {
  const std::lock_guard lock(mutex_);
  if (!join_) {
    return;
  }
  if (!memory_) {  // a group of one
    join_.reset();
    return;
  }
  while (announce(false) > 0) {
    shadow_step();
  }
  const int root = join_->root;
  join_.reset();
  ddp::NamedTensors everything = tensors_.parameters;
  everything.insert(everything.end(), tensors_.buffers.begin(), tensors_.buffers.end());
  const c10::AutoGradMode no_grad(false);
  ddp::broadcast_tensors(group_, everything, root, 25 << 20);
}

Join::Join(std::shared_ptr<Reducer> reducer, JoinOptions options) : reducer_(std::move(reducer)) {
  reducer_->impl_->begin_join(options);
}

Join& Join::operator=(Join&& other) noexcept {
  Join old(std::move(*this));  // ends at the end of this scope
  reducer_ = std::move(other.reducer_);
  return *this;
}

Join::~Join() {
  if (reducer_) {
    reducer_->impl_->abandon_join();
  }
}

void Join::wait() {
  if (reducer_) {
    reducer_->impl_->wait_for_join();
  }
}

}  // namespace lockstep

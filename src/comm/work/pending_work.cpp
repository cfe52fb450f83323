#include "comm/work/pending_work.h"

#include "comm/membership.h"
#include "comm/work/callback_pool.h"

namespace lockstep::comm {

bool PendingWork::done() const {
  return membership_->read([this] { return report_.is_finished; }) ||
         membership_->failure().has_value();
}

void PendingWork::on_done(std::function<void(std::exception_ptr)> callback) {
  bool is_finished = false;
  bool is_dropped = false;
  membership_->update([&] {
    is_finished = report_.is_finished;
    is_dropped = is_dropped_;
    if (!is_finished && !is_dropped) {
      callbacks_.push_back(callback);
    }
  });
  if (is_finished) {
    callback(outcome());
  } else if (is_dropped) {
    call_on_failure(std::move(callback));
  }
}

// Calls `callback` on a thread that may wait for the failure.
void PendingWork::call_on_failure(std::function<void(std::exception_ptr)> callback) {
  run_callback(
      [self = shared_from_this(), callback = std::move(callback)] { callback(self->outcome()); });
}

void PendingWork::drop() {
  std::vector<std::function<void(std::exception_ptr)>> callbacks;
  membership_->update([&] {
    is_dropped_ = true;
    callbacks.swap(callbacks_);
  });
  for (auto& callback : callbacks) {
    call_on_failure(std::move(callback));
  }
}

void PendingWork::begin() {
  membership_->update([this] { ++*num_pending_; });
}

void PendingWork::finish(const std::string& error) {
  std::vector<std::function<void(std::exception_ptr)>> callbacks;
  membership_->update([&] {
    report_ = {true, error};
    --*num_pending_;
    callbacks.swap(callbacks_);
  });
  if (!callbacks.empty()) {
    const std::exception_ptr result = outcome();
    for (const auto& callback : callbacks) {
      callback(result);
    }
  }
}

PendingWork::Report PendingWork::await_report(base::Deadline limit) {
  membership_->wait(limit.earlier(call_.deadline), [this] { return report_.is_finished; });
  return membership_->read([this] { return report_; });
}

std::exception_ptr PendingWork::outcome() {
  try {
    wait(base::Deadline::never());
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace lockstep::comm

#include "comm/backends/staged_message.h"

#include <condition_variable>
#include <mutex>

#include <lockstep/base/error.h>

#include "comm/work/staging.h"

namespace lockstep::comm {
namespace {

using device::Lane;

// Copies what came to the device, once, whoever hears of it first: a waiter, or the thread that
// reports that the message is here.
class StagedRecv : public WorkState, public std::enable_shared_from_this<StagedRecv> {
 public:
  StagedRecv(at::Tensor output, at::Tensor host, std::shared_ptr<Staging> staging)
      : output_(std::move(output)), host_(std::move(host)), staging_(std::move(staging)) {}

  void follow(std::shared_ptr<WorkState> carried) {
    carried_ = std::move(carried);
    if (!carried_) {
      fetch();
      return;
    }
    // Also for those who never wait. The message keeps this object until then.
    carried_->on_done([self = shared_from_this()](const std::exception_ptr& error) {
      if (!error) {
        self->fetch();
      }
    });
  }

  bool wait(base::Deadline limit) override {
    if (carried_ && !carried_->wait(limit)) {
      return false;
    }
    if (const std::exception_ptr error = fetch()) {
      std::rethrow_exception(error);
    }
    staging_->copies->current_waits(staging_->after);
    return true;
  }
  bool done() const override { return !carried_ || carried_->done(); }
  void on_done(std::function<void(std::exception_ptr)> callback) override {
    if (!carried_) {
      callback(fetch());
      return;
    }
    carried_->on_done([self = shared_from_this(),
                       callback = std::move(callback)](const std::exception_ptr& error) {
      callback(error ? error : self->fetch());
    });
  }

 private:
  // Returns what went wrong: the thread that finishes messages cannot take an exception.
  std::exception_ptr fetch() {
    const std::lock_guard lock(mutex_);
    if (!staging_->after && !error_) {
      try {
        // Lanes belong to the queue's thread; a message's copy has a stream of its own.
        staging_->after = staging_->copies->copy_apart(output_.view({-1}), host_, staging_->before);
      } catch (...) {
        error_ = std::current_exception();
      }
    }
    return error_;
  }

  const at::Tensor output_;
  const at::Tensor host_;
  const std::shared_ptr<Staging> staging_;
  std::shared_ptr<WorkState> carried_;
  std::mutex mutex_;
  std::exception_ptr error_;  // of the copy; guarded by mutex_
};

// What a send gives, once it is on the host.
at::Tensor sent(Backend& carrier, const Call& call, const Staging& staging) {
  device::Copies& copies = *staging.copies;
  const at::Tensor host = host_copy_of(copies, call.input);
  const device::MomentPtr copied = copies.copy_apart(host, call.input.view({-1}), staging.before);
  if (!device::wait_for(copies, copied, call.deadline, [&] { carrier.check(call); })) {
    carrier.abandon("its GPU has not finished the tensor of " + call.text());
    throw TimeoutError("{}: the GPU has not finished the tensor after {}", call.text(),
                       base::to_text(call.timeout));
  }
  return host;
}

}  // namespace

std::shared_ptr<WorkState> start_message(Backend& carrier, Call call) {
  const std::shared_ptr<Staging> staging = std::exchange(call.staging, nullptr);
  call.part_of = call.label();
  at::Tensor host;
  abandon_on_error(carrier, call, [&] {
    host = call.operation == Operation::Recv ? host_copy_of(*staging->copies, call.output)
                                             : sent(carrier, call, *staging);
  });
  if (call.operation == Operation::Recv) {
    auto work = std::make_shared<StagedRecv>(std::exchange(call.output, host), host, staging);
    work->follow(carrier.start(std::move(call)));
    return work;
  }
  call.input = host;
  return carrier.start(std::move(call));
}

}  // namespace lockstep::comm

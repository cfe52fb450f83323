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
    fetch();
    staging_->copies->current_waits(staging_->after);
    return true;
  }
  bool done() const override { return !carried_ || carried_->done(); }
  void on_done(std::function<void(std::exception_ptr)> callback) override {
    if (!carried_) {
      callback(nullptr);
      return;
    }
    carried_->on_done([self = shared_from_this(),
                       callback = std::move(callback)](const std::exception_ptr& error) {
      if (!error) {
        self->fetch();
      }
      callback(error);
    });
  }

 private:
  void fetch() {
    const std::lock_guard lock(mutex_);
    if (!staging_->after) {
      // Lanes belong to the queue's thread; a message's copy has a stream of its own.
      staging_->after = staging_->copies->copy_apart(output_.view({-1}), host_, staging_->before);
    }
  }

  const at::Tensor output_;
  const at::Tensor host_;
  const std::shared_ptr<Staging> staging_;
  std::shared_ptr<WorkState> carried_;
  std::mutex mutex_;
};

}  // namespace

std::shared_ptr<WorkState> start_message(Backend& carrier, Call call) {
  const std::shared_ptr<Staging> staging = std::exchange(call.staging, nullptr);
  device::Copies& copies = *staging->copies;
  call.part_of = call.label();
  if (call.operation == Operation::Recv) {
    const at::Tensor host = host_copy_of(copies, call.output);
    auto work = std::make_shared<StagedRecv>(std::exchange(call.output, host), host, staging);
    work->follow(carrier.start(std::move(call)));
    return work;
  }
  const at::Tensor host = host_copy_of(copies, call.input);
  const device::MomentPtr copied = copies.copy_apart(host, call.input.view({-1}), staging->before);
  if (!device::wait_for(copies, copied, call.deadline)) {
    throw TimeoutError("{}: the GPU has not finished the tensor after {}", call.text(),
                       base::to_text(call.timeout));
  }
  call.input = host;
  return carrier.start(std::move(call));
}

}  // namespace lockstep::comm

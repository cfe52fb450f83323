#include "comm/shm_message.h"

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

// One message in the messenger's hands.
class ShmMessage : public WorkState, public std::enable_shared_from_this<ShmMessage> {
 public:
  ShmMessage(Call call, std::shared_ptr<Membership> membership,
             std::shared_ptr<shm::Messenger> messenger, std::shared_ptr<int> num_pending)
      : call_(std::move(call)),
        membership_(std::move(membership)),
        messenger_(std::move(messenger)),
        num_pending_(std::move(num_pending)) {}

  void launch(int local_peer) {
    membership_->update([this] { ++*num_pending_; });
    const at::Tensor& tensor = call_.input.defined() ? call_.input : call_.output;
    shm::Message message{
        .peer = local_peer,
        .tag = call_.tag,
        .type = to_shm(tensor.scalar_type()),
        .data = const_cast<void*>(tensor.const_data_ptr()),
        .bytes = tensor.nbytes(),
        .done = [self = shared_from_this()](const std::string& error) { self->finish(error); }};
    if (call_.operation == Operation::Send) {
      messenger_->send(std::move(message));
    } else {
      messenger_->receive(std::move(message));
    }
  }

  bool wait(Deadline limit) override {
    membership_->wait(limit.earlier(call_.deadline), [this] { return is_finished_; });
    const auto [is_finished, error] =
        membership_->read([this] { return std::pair(is_finished_, error_); });
    if (is_finished && error.empty()) {
      return true;
    }
    if (!is_finished && !membership_->failure() && !call_.deadline.expired()) {
      return false;
    }
    messenger_->stop();  // from here on nobody touches the tensor
    if (!error.empty()) {
      membership_->fail_call(call_, {Failure::Kind::Desync, error});
    }
    membership_->check(call_);
    membership_->time_out(call_);
  }

  bool done() const override {
    return membership_->read([this] { return is_finished_; }) || membership_->failure().has_value();
  }

  void on_done(std::function<void(std::exception_ptr)> callback) override {
    bool is_done = false;
    membership_->update([&] {
      is_done = is_finished_;
      if (!is_done) {
        callbacks_.push_back(callback);
      }
    });
    if (is_done) {
      callback(outcome());
    }
  }

 private:
  void finish(const std::string& error) {
    std::vector<std::function<void(std::exception_ptr)>> callbacks;
    membership_->update([&] {
      is_finished_ = true;
      error_ = error;
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

  std::exception_ptr outcome() {
    try {
      wait(Deadline::never());
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  const Call call_;
  const std::shared_ptr<Membership> membership_;
  const std::shared_ptr<shm::Messenger> messenger_;
  const std::shared_ptr<int> num_pending_;
  bool is_finished_ = false;  // guarded by membership_, as what follows
  std::string error_;
  std::vector<std::function<void(std::exception_ptr)>> callbacks_;
};

}  // namespace

std::shared_ptr<WorkState> ShmMessages::start(Call call, int local_peer) {
  auto message =
      std::make_shared<ShmMessage>(std::move(call), membership_, messenger_, num_pending_);
  message->launch(local_peer);
  return message;
}

bool ShmMessages::drain(Deadline limit) {
  return membership_->wait(limit, [this] { return *num_pending_ == 0; });
}

}  // namespace lockstep

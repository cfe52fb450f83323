#include "comm/backends/shm_message.h"

#include <lockstep/base/error.h>

#include "comm/membership.h"
#include "comm/work/pending_work.h"

namespace lockstep::comm {
namespace {

// One message in the messenger's hands.
class ShmMessage : public PendingWork {
 public:
  ShmMessage(Call call, std::shared_ptr<Membership> membership,
             std::shared_ptr<shm::Messenger> messenger, std::shared_ptr<int> num_pending)
      : PendingWork(std::move(call), std::move(membership), std::move(num_pending)),
        messenger_(std::move(messenger)) {}

  void launch(int local_peer) {
    begin();
    const at::Tensor& tensor = call_.input.defined() ? call_.input : call_.output;
    shm::Message message{
        .peer = local_peer,
        .tag = call_.tag,
        .type = to_shm(tensor.scalar_type()),
        .data = const_cast<void*>(tensor.const_data_ptr()),
        .bytes = tensor.nbytes(),
        .done = [self = shared_from_this(), this](const std::string& error) { ended(error); }};
    const bool is_taken = call_.operation == Operation::Send
                              ? messenger_->send(std::move(message))
                              : messenger_->receive(std::move(message));
    if (!is_taken) {
      drop();
    }
  }

  bool wait(base::Deadline limit) override {
    const auto [is_finished, error] = await_report(limit);
    if (is_finished && error.empty()) {
      return true;
    }
    if (!is_finished && !membership_->failure() && !call_.deadline.expired()) {
      return false;
    }
    messenger_->stop();  // from here on no thread touches the tensor
    if (!error.empty()) {
      membership_->fail_call(call_, {Failure::Kind::Desync, error});
    }
    membership_->check(call_);
    membership_->time_out(call_);
  }

 private:
  void ended(const std::string& error) {
    if (error == shm::Messenger::kStopped) {
      drop();
    } else {
      finish(error);
    }
  }

  const std::shared_ptr<shm::Messenger> messenger_;
};

}  // namespace

std::shared_ptr<WorkState> ShmMessages::start(Call call, int local_peer) {
  auto message =
      std::make_shared<ShmMessage>(std::move(call), membership_, messenger_, num_pending_);
  message->launch(local_peer);
  return message;
}

bool ShmMessages::drain(base::Deadline limit) {
  return membership_->wait(limit, [this] { return *num_pending_ == 0; });
}

}  // namespace lockstep::comm

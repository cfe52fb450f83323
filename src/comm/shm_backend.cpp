#include "comm/shm_backend.h"

#include <lockstep/base/error.h>

#include "comm/shm_message.h"
#include "comm/work_queue.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr auto kPendingTime = 1s;  // for operations in flight when the group is destroyed

shm::Task to_task(const Call& call, int size) {
  shm::Task task;
  if (call.input.defined()) {
    task.type = to_shm(call.input.scalar_type());
    task.input = call.input.const_data_ptr();
  }
  if (call.output.defined()) {
    task.output = const_cast<void*>(call.output.const_data_ptr());
  }
  task.reduction = to_shm(call.reduce);
  task.root = call.peer;
  const auto count = static_cast<size_t>(call.input.defined() ? call.input.numel() : 0);
  switch (call.operation) {
    case Operation::AllReduce:
      task.kind = shm::Kind::AllReduce;
      task.count = count;
      break;
    case Operation::Broadcast:
      task.kind = shm::Kind::Broadcast;
      task.count = count;
      break;
    case Operation::AllGather:
      task.kind = shm::Kind::AllGather;
      task.count = count;
      break;
    case Operation::ReduceScatter:
      task.kind = shm::Kind::ReduceScatter;
      task.count = count / static_cast<size_t>(size);
      break;
    case Operation::AllToAll:
      task.kind = shm::Kind::AllToAll;
      task.input_splits = call.input_splits;
      task.output_splits = call.output_splits;
      break;
    case Operation::Barrier:
      task.kind = shm::Kind::Barrier;
      break;
    default:
      throw InternalError("not a collective: {}", call.text());
  }
  return task;
}

class ShmBackend : public Backend {
 public:
  explicit ShmBackend(ShmOptions options)
      : options_(std::move(options)),
        membership_(options_.membership),
        team_(*options_.team),
        messages_(membership_, team_),
        queue_([this](const Call& call) { team_.run(to_task(call, size()), call); }) {}

  ~ShmBackend() override {
    const Deadline limit = Deadline::after(kPendingTime);
    const bool is_idle = queue_.drain(limit) && messages_.drain(limit);
    if (!is_idle && !membership_->failure()) {
      membership_->abandon("it destroyed the group with operations in flight");
    }
    queue_.stop();
    membership_->tell_of_exception();
    if (!membership_->failure()) {
      team_.depart();  // who still waits for this rank learns it now
    }
    membership_->leave();
  }

  int rank() const override { return membership_->rank(); }
  int size() const override { return membership_->size(); }
  std::string name() const override { return "shm"; }
  std::chrono::milliseconds timeout() const override { return options_.timeout; }
  std::optional<Store> store() const override { return membership_->store(); }
  GroupOptions options() const override { return options_.group; }

  std::shared_ptr<WorkState> start(Call call) override {
    membership_->started(call);
    if (call.is_message()) {
      const int peer = call.peer;
      return messages_.start(std::move(call), peer);
    }
    return queue_.push(std::move(call));
  }

  void run(Call call) override {
    if (call.is_message()) {
      start(std::move(call))->wait(Deadline::never());
      return;
    }
    membership_->started(call);
    queue_.run(call);
  }

  at::Tensor allocate(int64_t bytes, const Call& call) override {
    membership_->started(call);
    settle(call);
    return team_.allocate(bytes, call);
  }

  void rebind(const at::Tensor& tensor, const Call& call) override {
    membership_->started(call);
    settle(call);
    team_.rebind(tensor, call);
  }

 private:
  // Memory changes hands between operations.
  void settle(const Call& call) {
    if (!queue_.drain(call.deadline)) {
      membership_->time_out(call);
    }
  }

  const ShmOptions options_;
  const std::shared_ptr<Membership> membership_;
  LocalTeam& team_;
  ShmMessages messages_;
  WorkQueue queue_;
};

}  // namespace

std::shared_ptr<Backend> make_shm_backend(ShmOptions options) {
  return std::make_shared<ShmBackend>(std::move(options));
}

}  // namespace lockstep

#include "comm/backends/shm_backend.h"

#include <lockstep/base/error.h>

#include "comm/membership.h"

namespace lockstep::comm {
namespace {

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

class ShmBackend : public TeamBackend {
 public:
  explicit ShmBackend(TeamOptions options)
      : TeamBackend(std::move(options),
                    [this](const Call& call) { team_.run(to_task(call, size()), call); }) {}
  ~ShmBackend() override { end(); }

  std::string name() const override { return "shm"; }

  std::shared_ptr<WorkState> start(Call call) override {
    membership_->started(call);
    if (call.is_message()) {
      const int peer = call.peer;
      return messages_.start(std::move(call), peer);
    }
    return queue_.push(std::move(call));
  }
};

}  // namespace

std::shared_ptr<Backend> make_shm_backend(TeamOptions options) {
  return std::make_shared<ShmBackend>(std::move(options));
}

}  // namespace lockstep::comm

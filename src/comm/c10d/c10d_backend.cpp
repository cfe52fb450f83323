#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <lockstep/base/error.h>
#include <lockstep/comm/c10d.h>

namespace lockstep {
namespace {

ReduceOp from_c10d(const c10d::ReduceOp& op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::Sum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::Average;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::Product;
    case c10d::ReduceOp::MIN:
      return ReduceOp::Min;
    case c10d::ReduceOp::MAX:
      return ReduceOp::Max;
    case c10d::ReduceOp::BAND:
      return ReduceOp::BitAnd;
    case c10d::ReduceOp::BOR:
      return ReduceOp::BitOr;
    default:
      throw UsageError(
          "c10d: a lockstep group cannot reduce with operation {}; it knows sum, "
          "average, product, min, max, band and bor",
          static_cast<int>(op.op_));
  }
}

// c10d's "no timeout" is the group's own.
std::chrono::milliseconds from_c10d(std::chrono::milliseconds timeout) {
  return timeout == c10d::kUnsetTimeout || timeout.count() < 0 ? kGroupTimeout : timeout;
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* operation) {
  if (tensors.size() != 1) {
    throw UsageError("c10d: {} of {} tensors at once; a lockstep group takes one", operation,
                     tensors.size());
  }
  return tensors[0];
}

// A lockstep Work as c10d's. `finish` turns the result into what the caller wants, once.
class C10dWork : public c10d::Work {
 public:
  C10dWork(int rank, c10d::OpType type, lockstep::Work work, std::vector<at::Tensor> outputs,
           std::function<void()> finish)
      : c10d::Work(rank, type),
        work_(std::move(work)),
        outputs_(std::move(outputs)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()), devices_of(outputs_))) {
    work_.on_done([future = future_, outputs = outputs_,
                   finish = std::move(finish)](const std::exception_ptr& error) {
      if (error) {
        future->setError(error);
        return;
      }
      try {
        if (finish) {
          finish();
        }
      } catch (...) {
        future->setError(std::current_exception());
        return;
      }
      future->markCompleted(c10::IValue(outputs));
    });
  }

  bool isCompleted() override { return future_->completed(); }
  bool isSuccess() const override { return future_->completed() && !future_->hasError(); }
  std::exception_ptr exception() const override {
    return future_->hasError() ? future_->exception_ptr() : nullptr;
  }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  void synchronize() override { wait(kNoTimeout); }

  // As in c10d, it returns true or throws, even when only this wait's time is over.
  bool wait(std::chrono::milliseconds timeout) override {
    if (timeout == kNoTimeout) {
      work_.wait();
    } else if (!work_.wait_for(timeout)) {
      throw TimeoutError("c10d: the operation is not done after {} ms", timeout.count());
    }
    future_->wait();  // the callback may still be finishing
    return true;
  }

 private:
  // Whose streams the future orders: none for tensors of the CPU.
  static std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
    const bool is_on_gpu = !tensors.empty() && tensors[0].is_cuda();
    return is_on_gpu ? std::vector{tensors[0].device()} : std::vector<c10::Device>();
  }

  lockstep::Work work_;
  std::vector<at::Tensor> outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class C10dBackend : public c10d::Backend {
 public:
  explicit C10dBackend(Group group)
      : c10d::Backend(group.rank(), group.size()), group_(std::move(group)) {}

  const std::string getBackendName() const override { return "lockstep"; }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    const at::Tensor& tensor = only(tensors, "broadcast");
    return wrap(c10d::OpType::BROADCAST,
                group_.broadcast_async(tensor, {.root = static_cast<int>(options.rootRank),
                                                .timeout = from_c10d(options.timeout)}),
                {tensor});
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    const at::Tensor& tensor = only(tensors, "allreduce");
    return wrap(c10d::OpType::ALLREDUCE,
                group_.all_reduce_async(tensor, {.op = from_c10d(options.reduceOp),
                                                 .timeout = from_c10d(options.timeout)}),
                {tensor});
  }

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override {
    const at::Tensor& input = only(inputs, "allgather");
    if (outputs.size() != 1 || outputs[0].size() != static_cast<size_t>(getSize())) {
      throw UsageError("c10d: allgather needs one list of {} outputs", getSize());
    }
    const at::Tensor flat = at::empty({getSize() * input.numel()}, input.options());
    auto finish = [flat, parts = outputs[0]] {
      for (size_t rank = 0; rank < parts.size(); ++rank) {
        const int64_t count = parts[rank].numel();
        at::Tensor part = parts[rank].detach();
        part.copy_(flat.narrow(0, static_cast<int64_t>(rank) * count, count).view_as(part));
      }
      if (flat.is_cuda()) {  // this thread's stream still reads it when the caller lets it go
        flat.record_stream(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(flat.device()));
      }
    };
    return wrap(c10d::OpType::ALLGATHER,
                group_.all_gather_async(flat, input, {.timeout = from_c10d(options.timeout)}),
                outputs[0], std::move(finish));
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    return wrap(c10d::OpType::_ALLGATHER_BASE,
                group_.all_gather_async(output, input, {.timeout = from_c10d(options.timeout)}),
                {output});
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
      const c10d::ReduceScatterOptions& options) override {
    at::Tensor output = only(outputs, "reduce_scatter");
    if (inputs.size() != 1 || inputs[0].size() != static_cast<size_t>(getSize())) {
      throw UsageError("c10d: reduce_scatter needs one list of {} inputs", getSize());
    }
    std::vector<at::Tensor> flat;
    for (const at::Tensor& input : inputs[0]) {
      flat.push_back(input.reshape({-1}));
    }
    at::Tensor joined = at::cat(flat);
    return _reduce_scatter_base(output, joined, options);
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return wrap(c10d::OpType::_REDUCE_SCATTER_BASE,
                group_.reduce_scatter_async(
                    output, input,
                    {.op = from_c10d(options.reduceOp), .timeout = from_c10d(options.timeout)}),
                {output});
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override {
    return wrap(c10d::OpType::ALLTOALL_BASE,
                group_.all_to_all_async(output, input,
                                        {.input_splits = input_splits,
                                         .output_splits = output_splits,
                                         .timeout = from_c10d(options.timeout)}),
                {output});
  }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    const at::Tensor& tensor = only(tensors, "send");
    return wrap(c10d::OpType::SEND, group_.send_async(tensor, to, {.tag = tag}), {tensor});
  }

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from,
                                      int tag) override {
    const at::Tensor& tensor = only(tensors, "recv");
    return wrap(c10d::OpType::RECV, group_.recv_async(tensor, from, {.tag = tag}), {tensor});
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    return wrap(c10d::OpType::BARRIER,
                group_.barrier_async({.timeout = from_c10d(options.timeout)}), {});
  }

 private:
  c10::intrusive_ptr<c10d::Work> wrap(c10d::OpType type, lockstep::Work work,
                                      std::vector<at::Tensor> outputs,
                                      std::function<void()> finish = nullptr) const {
    return c10::make_intrusive<C10dWork>(getRank(), type, std::move(work), std::move(outputs),
                                         std::move(finish));
  }

  Group group_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_c10d_backend(Group group) {
  return c10::make_intrusive<C10dBackend>(std::move(group));
}

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Group group) {
  auto process_group = c10::make_intrusive<c10d::ProcessGroup>(group.rank(), group.size());
  const auto type = c10d::ProcessGroup::BackendType::CUSTOM;
  const auto backend = make_c10d_backend(std::move(group));
  process_group->setBackend(at::kCPU, type, backend);
  process_group->setBackend(at::kCUDA, type, backend);
  process_group->setDefaultBackend(type);
  return process_group;
}

}  // namespace lockstep

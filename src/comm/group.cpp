#include <numeric>

#include <ATen/core/Tensor.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>

#include "comm/backend.h"

namespace lockstep {
namespace {

void check_tensor(const at::Tensor& tensor, const char* operation, const char* role) {
  if (!tensor.defined()) {
    throw UsageError("{}: {} is an undefined tensor", operation, role);
  }
  if (!tensor.device().is_cpu()) {
    throw UsageError("{}: {} is on {}; this group moves CPU tensors only: copy it with .cpu()",
                     operation, role, tensor.device().str());
  }
  if (tensor.layout() != at::kStrided) {
    throw UsageError("{}: {} is sparse; only dense tensors can be sent: use .to_dense()", operation,
                     role);
  }
  if (!tensor.is_contiguous()) {
    throw UsageError("{}: {} is not contiguous; use .contiguous() and keep the result alive",
                     operation, role);
  }
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
    case at::kBool:
      return;
    default:
      throw UsageError(
          "{}: {} has type {}; supported are float32, float64, float16, bfloat16, int8, uint8, "
          "int32, int64 and bool",
          operation, role, c10::toString(tensor.scalar_type()));
  }
}

void check_reducible(const at::Tensor& tensor, ReduceOp op, const char* operation) {
  const at::ScalarType type = tensor.scalar_type();
  const bool is_bitwise = op == ReduceOp::BitAnd || op == ReduceOp::BitOr;
  const bool is_floating = c10::isFloatingType(type);
  if (is_bitwise && is_floating) {
    throw UsageError("{}: bitwise and/or need whole numbers or bool, not {}", operation,
                     c10::toString(type));
  }
  if (!is_bitwise && type == at::kBool) {
    throw UsageError(
        "{}: bool can be reduced with BitAnd (all) and BitOr (any) only; for a count use "
        ".to(at::kLong)",
        operation);
  }
  if (op == ReduceOp::Average && !is_floating) {
    throw UsageError("{}: the average of {} is not a {}; use Sum and divide, or a floating type",
                     operation, c10::toString(type), c10::toString(type));
  }
}

void check_same_type(const at::Tensor& output, const at::Tensor& input, const char* operation) {
  if (output.scalar_type() != input.scalar_type()) {
    throw UsageError("{}: output is {} and input {}; they must be of one type", operation,
                     c10::toString(output.scalar_type()), c10::toString(input.scalar_type()));
  }
}

void check_times(const at::Tensor& large, const at::Tensor& small, int size, const char* operation,
                 const char* large_role, const char* small_role) {
  if (large.numel() != small.numel() * size) {
    throw UsageError("{}: {} has {} elements; with {} of {} on each of {} ranks it must have {}",
                     operation, large_role, large.numel(), small.numel(), small_role, size,
                     small.numel() * size);
  }
}

void check_rank(int rank, int size, const char* operation, const char* role) {
  if (rank < 0 || rank >= size) {
    throw UsageError("{}: {} {} is not in [0, {})", operation, role, rank, size);
  }
}

// Rows to elements; checks that they make up the tensor.
std::vector<int64_t> element_splits(const at::Tensor& tensor, const std::vector<int64_t>& rows,
                                    int size, const char* role) {
  if (rows.empty()) {
    if (tensor.numel() % size != 0 || (tensor.dim() > 0 && tensor.size(0) % size != 0)) {
      throw UsageError(
          "all_to_all: {} has {} rows, which {} ranks cannot share equally; give {}_splits", role,
          tensor.dim() > 0 ? tensor.size(0) : 0, size, role);
    }
    return std::vector<int64_t>(static_cast<size_t>(size), tensor.numel() / size);
  }
  if (static_cast<int>(rows.size()) != size) {
    throw UsageError("all_to_all: {}_splits has {} entries for {} ranks", role, rows.size(), size);
  }
  const int64_t num_rows = tensor.dim() > 0 ? tensor.size(0) : 1;
  const int64_t row_elements = num_rows == 0 ? 0 : tensor.numel() / num_rows;
  int64_t sum = 0;
  std::vector<int64_t> elements;
  for (const int64_t count : rows) {
    if (count < 0 || count > num_rows - sum) {
      throw UsageError("all_to_all: {}_splits do not add up to the {} rows of {}", role, num_rows,
                       role);
    }
    sum += count;
    elements.push_back(count * row_elements);
  }
  if (sum != num_rows) {
    throw UsageError("all_to_all: {}_splits add up to {}, {} has {} rows", role, sum, role,
                     num_rows);
  }
  return elements;
}

Work launch(Backend& backend, Call call, std::chrono::milliseconds timeout) {
  if (timeout.count() < 0) {
    throw UsageError("{}: a timeout of {} ms is negative", call.signature(), timeout.count());
  }
  call.timeout = timeout == kGroupTimeout ? backend.timeout() : timeout;
  call.deadline = Deadline::after(call.timeout);
  call.sequence = call.is_message() ? 0 : backend.next_sequence();
  return Work(backend.start(std::move(call)));
}

}  // namespace

void Work::wait() {
  if (state_) {
    state_->wait(Deadline::never());
  }
}

bool Work::wait_for(std::chrono::milliseconds limit) {
  return !state_ || state_->wait(Deadline::after(limit));
}
bool Work::done() const {
  return !state_ || state_->done();
}

Group::Group(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {}

int Group::rank() const {
  return backend_->rank();
}
int Group::size() const {
  return backend_->size();
}
std::string Group::backend_name() const {
  return backend_->name();
}
std::chrono::milliseconds Group::timeout() const {
  return backend_->timeout();
}

Store Group::store() const {
  auto store = backend_->store();
  if (!store) {
    throw UsageError("group: a group of one has no store; make one with Store::host()");
  }
  return *store;
}

Work Group::all_reduce_async(const at::Tensor& tensor, ReduceOptions options) {
  check_tensor(tensor, "all_reduce", "the tensor");
  check_reducible(tensor, options.op, "all_reduce");
  Call call{
      .operation = Operation::AllReduce, .input = tensor, .output = tensor, .reduce = options.op};
  return launch(*backend_, std::move(call), options.timeout);
}

Work Group::broadcast_async(const at::Tensor& tensor, BroadcastOptions options) {
  check_tensor(tensor, "broadcast", "the tensor");
  check_rank(options.root, size(), "broadcast", "root");
  Call call{
      .operation = Operation::Broadcast, .input = tensor, .output = tensor, .peer = options.root};
  return launch(*backend_, std::move(call), options.timeout);
}

Work Group::all_gather_async(const at::Tensor& output, const at::Tensor& input,
                             WaitOptions options) {
  check_tensor(input, "all_gather", "input");
  check_tensor(output, "all_gather", "output");
  check_same_type(output, input, "all_gather");
  check_times(output, input, size(), "all_gather", "output", "input");
  Call call{.operation = Operation::AllGather, .input = input, .output = output};
  return launch(*backend_, std::move(call), options.timeout);
}

Work Group::reduce_scatter_async(const at::Tensor& output, const at::Tensor& input,
                                 ReduceOptions options) {
  check_tensor(input, "reduce_scatter", "input");
  check_tensor(output, "reduce_scatter", "output");
  check_same_type(output, input, "reduce_scatter");
  check_times(input, output, size(), "reduce_scatter", "input", "output");
  check_reducible(input, options.op, "reduce_scatter");
  Call call{.operation = Operation::ReduceScatter,
            .input = input,
            .output = output,
            .reduce = options.op};
  return launch(*backend_, std::move(call), options.timeout);
}

Work Group::all_to_all_async(const at::Tensor& output, const at::Tensor& input,
                             AllToAllOptions options) {
  check_tensor(input, "all_to_all", "input");
  check_tensor(output, "all_to_all", "output");
  check_same_type(output, input, "all_to_all");
  Call call{.operation = Operation::AllToAll, .input = input, .output = output};
  call.input_splits = element_splits(input, options.input_splits, size(), "input");
  call.output_splits = element_splits(output, options.output_splits, size(), "output");
  if (call.input_splits[static_cast<size_t>(rank())] !=
      call.output_splits[static_cast<size_t>(rank())]) {
    throw UsageError("all_to_all: this rank sends itself {} elements and expects {}",
                     call.input_splits[static_cast<size_t>(rank())],
                     call.output_splits[static_cast<size_t>(rank())]);
  }
  return launch(*backend_, std::move(call), options.timeout);
}

namespace {

void check_message(int peer, int rank, int size, int tag, const char* operation) {
  check_rank(peer, size, operation, "peer");
  if (peer == rank) {
    throw UsageError("{}: rank {} is this rank itself; a message needs two", operation, peer);
  }
  if (tag < 0 || tag > 65535) {
    throw UsageError("{}: tag {} is not in [0, 65535]", operation, tag);
  }
}

}  // namespace

Work Group::send_async(const at::Tensor& tensor, int to, MessageOptions options) {
  check_tensor(tensor, "send", "the tensor");
  check_message(to, rank(), size(), options.tag, "send");
  Call call{.operation = Operation::Send, .input = tensor, .peer = to, .tag = options.tag};
  return launch(*backend_, std::move(call), options.timeout);
}

Work Group::recv_async(const at::Tensor& tensor, int from, MessageOptions options) {
  check_tensor(tensor, "recv", "the tensor");
  check_message(from, rank(), size(), options.tag, "recv");
  Call call{.operation = Operation::Recv, .output = tensor, .peer = from, .tag = options.tag};
  return launch(*backend_, std::move(call), options.timeout);
}

Work Group::barrier_async(WaitOptions options) {
  return launch(*backend_, Call{.operation = Operation::Barrier}, options.timeout);
}

void Group::all_reduce(const at::Tensor& tensor, ReduceOptions options) {
  all_reduce_async(tensor, options).wait();
}
void Group::broadcast(const at::Tensor& tensor, BroadcastOptions options) {
  broadcast_async(tensor, options).wait();
}
void Group::all_gather(const at::Tensor& output, const at::Tensor& input, WaitOptions options) {
  all_gather_async(output, input, options).wait();
}
void Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                           ReduceOptions options) {
  reduce_scatter_async(output, input, options).wait();
}
void Group::all_to_all(const at::Tensor& output, const at::Tensor& input, AllToAllOptions options) {
  all_to_all_async(output, input, std::move(options)).wait();
}
void Group::send(const at::Tensor& tensor, int to, MessageOptions options) {
  send_async(tensor, to, options).wait();
}
void Group::recv(const at::Tensor& tensor, int from, MessageOptions options) {
  recv_async(tensor, from, options).wait();
}
void Group::barrier(WaitOptions options) {
  barrier_async(options).wait();
}

Group make_single_group() {
  return Group(make_single_backend());
}

Group make_group(const Store& store, GroupOptions options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    throw UsageError("make_group: rank {} of {} ranks; the rank must be in [0, size)", options.rank,
                     options.size);
  }
  if (options.size == 1) {
    return make_single_group();
  }
  if (options.name.empty()) {
    throw UsageError("make_group: a group of {} ranks needs a name, the same on all of them",
                     options.size);
  }
  return Group(make_gloo_backend({.store = store, .group = std::move(options)}));
}

}  // namespace lockstep

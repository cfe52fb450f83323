#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>

#include "comm/backends/backend.h"
#include "comm/start/connect.h"

namespace lockstep {
namespace {

void check_tensor(const at::Tensor& tensor, const char* operation, const char* role) {
  if (!tensor.defined()) {
    throw UsageError("{}: {} is an undefined tensor", operation, role);
  }
  if (!tensor.is_cpu() && !tensor.is_cuda()) {
    throw UsageError("{}: {} is on {}; a group moves tensors of the CPU and of CUDA: copy it there",
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

void check_alike(const at::Tensor& output, const at::Tensor& input, const char* operation) {
  if (output.scalar_type() != input.scalar_type()) {
    throw UsageError("{}: output is {} and input {}; they must be of one type", operation,
                     c10::toString(output.scalar_type()), c10::toString(input.scalar_type()));
  }
  if (output.device() != input.device()) {
    throw UsageError("{}: output is on {} and input on {}; they must be on one device", operation,
                     output.device().str(), input.device().str());
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

// Part r of `whole` is `part` itself, or they have no byte in common: otherwise results would be
// written over what is still to be read.
void check_overlap(const at::Tensor& whole, const at::Tensor& part, int rank,
                   const char* operation) {
  const auto* begin = static_cast<const char*>(whole.const_data_ptr());
  const auto* other = static_cast<const char*>(part.const_data_ptr());
  const bool is_apart = other + part.nbytes() <= begin || begin + whole.nbytes() <= other;
  const bool is_own_part = other == begin + static_cast<size_t>(rank) * part.nbytes();
  if (whole.nbytes() > 0 && part.nbytes() > 0 && !is_apart && !is_own_part) {
    throw UsageError(
        "{}: input and output overlap; they may be apart, or the smaller one this rank's own part "
        "of the larger",
        operation);
  }
}

// Fills in the deadline and the number.
comm::Call prepared(comm::Backend& backend, comm::Call call, std::chrono::milliseconds timeout) {
  if (timeout.count() < 0) {
    throw UsageError("{}: a timeout of {} ms is negative", call.signature(), timeout.count());
  }
  call.timeout = timeout == kGroupTimeout ? backend.timeout() : timeout;
  call.deadline = base::Deadline::after(call.timeout);
  call.sequence = call.is_message() ? 0 : backend.next_sequence();
  return call;
}

comm::Call all_reduce_call(const at::Tensor& tensor, const ReduceOptions& options) {
  check_tensor(tensor, "all_reduce", "the tensor");
  check_reducible(tensor, options.op, "all_reduce");
  return {.operation = comm::Operation::AllReduce,
          .input = tensor,
          .output = tensor,
          .reduce = options.op};
}

comm::Call broadcast_call(const at::Tensor& tensor, const BroadcastOptions& options, int size) {
  check_tensor(tensor, "broadcast", "the tensor");
  check_rank(options.root, size, "broadcast", "root");
  return {.operation = comm::Operation::Broadcast,
          .input = tensor,
          .output = tensor,
          .peer = options.root};
}

comm::Call all_gather_call(const at::Tensor& output, const at::Tensor& input, int rank, int size) {
  check_tensor(input, "all_gather", "input");
  check_tensor(output, "all_gather", "output");
  check_alike(output, input, "all_gather");
  check_times(output, input, size, "all_gather", "output", "input");
  check_overlap(output, input, rank, "all_gather");
  return {.operation = comm::Operation::AllGather, .input = input, .output = output};
}

comm::Call reduce_scatter_call(const at::Tensor& output, const at::Tensor& input,
                               const ReduceOptions& options, int rank, int size) {
  check_tensor(input, "reduce_scatter", "input");
  check_tensor(output, "reduce_scatter", "output");
  check_alike(output, input, "reduce_scatter");
  check_times(input, output, size, "reduce_scatter", "input", "output");
  check_reducible(input, options.op, "reduce_scatter");
  check_overlap(input, output, rank, "reduce_scatter");
  return {.operation = comm::Operation::ReduceScatter,
          .input = input,
          .output = output,
          .reduce = options.op};
}

comm::Call all_to_all_call(const at::Tensor& output, const at::Tensor& input,
                           const AllToAllOptions& options, int rank, int size) {
  check_tensor(input, "all_to_all", "input");
  check_tensor(output, "all_to_all", "output");
  check_alike(output, input, "all_to_all");
  comm::Call call{.operation = comm::Operation::AllToAll, .input = input, .output = output};
  call.input_splits = element_splits(input, options.input_splits, size, "input");
  call.output_splits = element_splits(output, options.output_splits, size, "output");
  const auto self = static_cast<size_t>(rank);
  if (call.input_splits[self] != call.output_splits[self]) {
    throw UsageError("all_to_all: this rank sends itself {} elements and expects {}",
                     call.input_splits[self], call.output_splits[self]);
  }
  if (input.nbytes() > 0 && output.nbytes() > 0 &&
      input.const_data_ptr() == output.const_data_ptr()) {
    throw UsageError("all_to_all: input and output are the same memory; give it another output");
  }
  return call;
}

void check_message(int peer, int rank, int size, int tag, const char* operation) {
  check_rank(peer, size, operation, "peer");
  if (peer == rank) {
    throw UsageError("{}: rank {} is this rank itself; a message needs two", operation, peer);
  }
  if (tag < 0 || tag > 65535) {
    throw UsageError("{}: tag {} is not in [0, 65535]", operation, tag);
  }
}

comm::Call send_call(const at::Tensor& tensor, int to, const MessageOptions& options,
                     const Group& group) {
  check_tensor(tensor, "send", "the tensor");
  check_message(to, group.rank(), group.size(), options.tag, "send");
  return {.operation = comm::Operation::Send, .input = tensor, .peer = to, .tag = options.tag};
}

comm::Call recv_call(const at::Tensor& tensor, int from, const MessageOptions& options,
                     const Group& group) {
  check_tensor(tensor, "recv", "the tensor");
  check_message(from, group.rank(), group.size(), options.tag, "recv");
  return {.operation = comm::Operation::Recv, .output = tensor, .peer = from, .tag = options.tag};
}

}  // namespace

Group::Group(std::shared_ptr<comm::Backend> backend) : backend_(std::move(backend)) {}

int Group::rank() const {
  return backend_->rank();
}
int Group::size() const {
  return backend_->size();
}
uint64_t Group::id() const {
  return backend_->id();
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

// Starts a call, or carries it out: the one path of all operations.
Work Group::start(comm::Call call, std::chrono::milliseconds timeout) {
  return Work(backend_->start(prepared(*backend_, std::move(call), timeout)));
}
void Group::run(comm::Call call, std::chrono::milliseconds timeout) {
  backend_->run(prepared(*backend_, std::move(call), timeout));
}

void Group::all_reduce(const at::Tensor& tensor, ReduceOptions options) {
  run(all_reduce_call(tensor, options), options.timeout);
}
Work Group::all_reduce_async(const at::Tensor& tensor, ReduceOptions options) {
  return start(all_reduce_call(tensor, options), options.timeout);
}

void Group::broadcast(const at::Tensor& tensor, BroadcastOptions options) {
  run(broadcast_call(tensor, options, size()), options.timeout);
}
Work Group::broadcast_async(const at::Tensor& tensor, BroadcastOptions options) {
  return start(broadcast_call(tensor, options, size()), options.timeout);
}

void Group::all_gather(const at::Tensor& output, const at::Tensor& input, WaitOptions options) {
  run(all_gather_call(output, input, rank(), size()), options.timeout);
}
Work Group::all_gather_async(const at::Tensor& output, const at::Tensor& input,
                             WaitOptions options) {
  return start(all_gather_call(output, input, rank(), size()), options.timeout);
}

void Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                           ReduceOptions options) {
  run(reduce_scatter_call(output, input, options, rank(), size()), options.timeout);
}
Work Group::reduce_scatter_async(const at::Tensor& output, const at::Tensor& input,
                                 ReduceOptions options) {
  return start(reduce_scatter_call(output, input, options, rank(), size()), options.timeout);
}

void Group::all_to_all(const at::Tensor& output, const at::Tensor& input, AllToAllOptions options) {
  run(all_to_all_call(output, input, options, rank(), size()), options.timeout);
}
Work Group::all_to_all_async(const at::Tensor& output, const at::Tensor& input,
                             AllToAllOptions options) {
  return start(all_to_all_call(output, input, options, rank(), size()), options.timeout);
}

void Group::send(const at::Tensor& tensor, int to, MessageOptions options) {
  run(send_call(tensor, to, options, *this), options.timeout);
}
Work Group::send_async(const at::Tensor& tensor, int to, MessageOptions options) {
  return start(send_call(tensor, to, options, *this), options.timeout);
}

void Group::recv(const at::Tensor& tensor, int from, MessageOptions options) {
  run(recv_call(tensor, from, options, *this), options.timeout);
}
Work Group::recv_async(const at::Tensor& tensor, int from, MessageOptions options) {
  return start(recv_call(tensor, from, options, *this), options.timeout);
}

void Group::barrier(WaitOptions options) {
  run({.operation = comm::Operation::Barrier}, options.timeout);
}
Work Group::barrier_async(WaitOptions options) {
  return start({.operation = comm::Operation::Barrier}, options.timeout);
}

at::Tensor Group::allocate(int64_t bytes) {
  if (bytes < 0) {
    throw UsageError("allocate: {} bytes are negative", bytes);
  }
  comm::Call call = prepared(*backend_, {.operation = comm::Operation::Allocate}, kGroupTimeout);
  call.part_of = comm::CallLabel{
      .operation = comm::Operation::Allocate, .count = bytes, .sequence = call.sequence};
  return backend_->allocate(bytes, call);
}

void Group::rebind(const at::Tensor& tensor) {
  check_tensor(tensor, "rebind", "the tensor");
  comm::Call call = prepared(*backend_, {.operation = comm::Operation::Allocate}, kGroupTimeout);
  call.part_of = comm::CallLabel{.operation = comm::Operation::Allocate,
                                 .count = static_cast<int64_t>(tensor.nbytes()),
                                 .sequence = call.sequence};
  try {
    backend_->rebind(tensor, call);
  } catch (const UsageError&) {
    backend_->take_back_sequence();  // the others may wait for this rank's correct call
    throw;
  }
}

std::vector<int> Group::local_ranks() const {
  return backend_->local_ranks();
}

std::vector<at::Tensor> Group::local_views(const at::Tensor& memory) const {
  check_tensor(memory, "local_views", "the memory");
  return backend_->local_views(memory);
}

Traffic Group::traffic() const {
  return backend_->traffic();
}

Group Group::split(int color, int key) const {
  Group self = *this;
  const int64_t number = backend_->next_split();
  const at::Tensor mine = at::empty({2}, at::kLong);
  mine.data_ptr<int64_t>()[0] = color;
  mine.data_ptr<int64_t>()[1] = key;
  const at::Tensor all = at::empty({2 * size()}, at::kLong);
  self.all_gather(all, mine);
  const auto* values = all.data_ptr<int64_t>();
  std::vector<std::pair<int64_t, int>> members;  // (key, rank) of those with this color
  for (int other = 0; other < size(); ++other) {
    if (values[2 * other] == color) {
      members.emplace_back(values[2 * other + 1], other);
    }
  }
  if (color < 0 || members.size() == 1) {
    return make_single_group();
  }
  std::sort(members.begin(), members.end());
  GroupOptions options = backend_->options();
  const auto place =
      std::find(members.begin(), members.end(), std::pair<int64_t, int>(key, rank()));
  options.name = fmt::format("{}/{}.{}", options.name, number, color);
  options.rank = static_cast<int>(place - members.begin());
  options.size = static_cast<int>(members.size());
  return make_group(store(), std::move(options));
}

Group make_single_group() {
  return Group(comm::make_single_backend());
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
  return Group(comm::connect_group({.store = store, .group = std::move(options)}).backend);
}

}  // namespace lockstep

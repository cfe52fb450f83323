#include "comm/work/call.h"

#include <fmt/format.h>

namespace lockstep::comm {
namespace {

const char* operation_name(Operation operation) {
  switch (operation) {
    case Operation::AllReduce:
      return "all_reduce";
    case Operation::Broadcast:
      return "broadcast";
    case Operation::AllGather:
      return "all_gather";
    case Operation::ReduceScatter:
      return "reduce_scatter";
    case Operation::AllToAll:
      return "all_to_all";
    case Operation::Send:
      return "send";
    case Operation::Recv:
      return "recv";
    case Operation::Barrier:
      return "barrier";
    case Operation::Allocate:
      return "allocate";
    case Operation::Connect:
      return "make_group";
  }
  return "unknown";
}

const char* reduce_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return "sum";
    case ReduceOp::Average:
      return "average";
    case ReduceOp::Min:
      return "min";
    case ReduceOp::Max:
      return "max";
    case ReduceOp::Product:
      return "product";
    case ReduceOp::BitAnd:
      return "bitwise and";
    case ReduceOp::BitOr:
      return "bitwise or";
  }
  return "unknown";
}

std::string elements_text(const CallLabel& label) {
  return fmt::format("{}, {} elements", c10::toString(label.type), label.count);
}

// Returns what stands in the brackets.
std::string details(const CallLabel& label) {
  switch (label.operation) {
    case Operation::AllReduce:
    case Operation::ReduceScatter:
      return fmt::format("{}, {}", reduce_name(label.reduce), elements_text(label));
    case Operation::Broadcast:
      return fmt::format("root {}, {}", label.peer, elements_text(label));
    case Operation::AllGather:
      return elements_text(label);
    case Operation::AllToAll:
      return c10::toString(label.type);
    case Operation::Send:
      return fmt::format("to rank {}, tag {}, {}", label.peer, label.tag, elements_text(label));
    case Operation::Recv:
      return fmt::format("from rank {}, tag {}, {}", label.peer, label.tag, elements_text(label));
    case Operation::Allocate:
      return fmt::format("{} bytes", label.count);
    case Operation::Barrier:
    case Operation::Connect:
      break;
  }
  return "";
}

constexpr const char* kOnDevice = " on cuda";

std::string bracketed(const CallLabel& label) {
  const std::string inside = details(label);
  const std::string brackets = inside.empty() ? "" : fmt::format(" ({})", inside);
  return label.on_device ? brackets + kOnDevice : brackets;
}

}  // namespace

std::string CallLabel::signature() const {
  return operation_name(operation) + bracketed(*this);
}

std::string CallLabel::text() const {
  const std::string number = sequence == 0 ? "" : fmt::format(" #{}", sequence);
  return operation_name(operation) + number + bracketed(*this);
}

std::string disagreement_text(const RankCall& one, const RankCall& other) {
  if (one.sequence != other.sequence) {
    return fmt::format(
        "ranks called different operations: rank {} {} as number {}, rank {} {} as number {}",
        one.rank, one.signature, one.sequence, other.rank, other.signature, other.sequence);
  }
  const bool only_one_on_device = one.signature == other.signature + kOnDevice;
  const bool only_other_on_device = other.signature == one.signature + kOnDevice;
  return fmt::format(
      "ranks called different operations as number {}: rank {} {}{}, rank {} {}{}{}", one.sequence,
      one.rank, one.signature, only_other_on_device ? " on the CPU" : "", other.rank,
      other.signature, only_one_on_device ? " on the CPU" : "",
      only_one_on_device || only_other_on_device
          ? "; the tensors of all ranks must be on a GPU, or all on the CPU: use .to(device)"
          : "");
}

CallLabel Call::label() const {
  if (part_of) {
    return *part_of;
  }
  CallLabel label{.operation = operation,
                  .peer = peer,
                  .tag = tag,
                  .on_device = staging != nullptr && !is_message(),
                  .sequence = sequence};
  if (reduces()) {
    label.reduce = reduce;
  }
  // all_to_all may differ in counts between ranks; only its type must agree.
  const at::Tensor& tensor = input.defined() ? input : output;
  if (tensor.defined()) {
    label.type = tensor.scalar_type();
    label.count = operation == Operation::AllToAll ? 0 : tensor.numel();
  }
  return label;
}

}  // namespace lockstep::comm

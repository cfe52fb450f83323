#include <fmt/format.h>

#include "comm/backend.h"

namespace lockstep {
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

std::string tensor_text(const at::Tensor& tensor) {
  return fmt::format("{}, {} elements", c10::toString(tensor.scalar_type()), tensor.numel());
}

// What stands in the brackets. all_to_all may differ in counts between ranks; only its type must
// agree.
std::string details(const Call& call) {
  switch (call.operation) {
    case Operation::AllReduce:
    case Operation::ReduceScatter:
      return fmt::format("{}, {}", reduce_name(call.reduce), tensor_text(call.input));
    case Operation::Broadcast:
      return fmt::format("root {}, {}", call.peer, tensor_text(call.input));
    case Operation::AllGather:
      return tensor_text(call.input);
    case Operation::AllToAll:
      return c10::toString(call.input.scalar_type());
    case Operation::Send:
      return fmt::format("to rank {}, tag {}, {}", call.peer, call.tag, tensor_text(call.input));
    case Operation::Recv:
      return fmt::format("from rank {}, tag {}, {}", call.peer, call.tag, tensor_text(call.output));
    case Operation::Barrier:
    case Operation::Connect:
      break;
  }
  return "";
}

std::string bracketed(const Call& call) {
  const std::string inside = details(call);
  return inside.empty() ? "" : fmt::format(" ({})", inside);
}

}  // namespace

std::string Call::signature() const {
  return operation_name(operation) + bracketed(*this);
}

std::string Call::text() const {
  const std::string number = sequence == 0 ? "" : fmt::format(" #{}", sequence);
  return operation_name(operation) + number + bracketed(*this);
}

}  // namespace lockstep

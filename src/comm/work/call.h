#pragma once

// A call of an operation: what it does, on what, and how errors name it.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/group.h>

#include "base/deadline.h"

namespace lockstep::comm {

struct Staging;  // staging.h

enum class Operation : uint8_t {
  AllReduce,
  Broadcast,
  AllGather,
  ReduceScatter,
  AllToAll,
  Send,
  Recv,
  Barrier,
  Allocate,
  Connect  // making the group itself: waited for and reported like the others
};

// Everything on which the ranks must agree, and the call's number. Cheap to copy.
struct CallLabel {
  Operation operation = Operation::Barrier;
  ReduceOp reduce = ReduceOp::Sum;
  at::ScalarType type = at::kByte;
  int64_t count = 0;  // elements
  int peer = 0;       // the root, or the other end of a message
  int tag = 0;
  bool on_device = false;  // its tensors are on CUDA, and travel in pieces; not said of messages
  int64_t sequence = 0;

  // "all_reduce (sum, Float, 1001 elements)", and " on cuda" after it if the tensors are there.
  std::string signature() const;
  // "all_reduce #12 (sum, Float, 1001 elements)": for errors.
  std::string text() const;
};

// A call, and the rank that made it.
struct RankCall {
  int rank = 0;
  std::string signature;
  int64_t sequence = 0;
};

// "ranks called different operations as number 7: rank 0 barrier, rank 2 all_reduce (...)".
std::string disagreement_text(const RankCall& one, const RankCall& other);

// One call, already checked.
struct Call {
  Operation operation = Operation::Barrier;
  at::Tensor input;   // what this rank gives; undefined for a recv and a barrier
  at::Tensor output;  // where its result goes (in place: the same as input); undefined for a send
                      // and a barrier
  ReduceOp reduce = ReduceOp::Sum;
  int peer = 0;  // the root, or the other end of a message
  int tag = 0;
  std::vector<int64_t> input_splits;   // all_to_all: elements to each rank
  std::vector<int64_t> output_splits;  // and from each
  int64_t sequence = 0;                // counts the collectives of the group from 1; 0 for messages
  base::Deadline deadline = base::Deadline::never();
  std::chrono::milliseconds timeout{0};  // what the deadline was made of: for messages
  std::optional<CallLabel> part_of;      // the user's call of which this is a step
  bool owns_tensors = false;  // they are the operation's own: it may write them when it likes
  std::shared_ptr<Staging> staging;  // for tensors of a device

  bool is_message() const { return operation == Operation::Send || operation == Operation::Recv; }
  bool reduces() const {
    return operation == Operation::AllReduce || operation == Operation::ReduceScatter;
  }

  // The label of the user's call.
  CallLabel label() const;
  std::string signature() const { return label().signature(); }
  std::string text() const { return label().text(); }
};

}  // namespace lockstep::comm

#pragma once

// What a Group is made of: one Backend per way of moving bytes. To add one, implement start(); the
// checks of arguments, the order of operations and the waiting rules are done around it.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/group.h>

#include "base/deadline.h"

namespace lockstep {

enum class Operation {
  AllReduce,
  Broadcast,
  AllGather,
  ReduceScatter,
  AllToAll,
  Send,
  Recv,
  Barrier,
  Connect  // making the group itself: waited for and reported like the others
};

// One call of an operation, already checked.
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
  Deadline deadline = Deadline::never();
  std::chrono::milliseconds timeout{0};  // what the deadline was made of: for messages

  bool is_message() const { return operation == Operation::Send || operation == Operation::Recv; }

  // Everything on which the ranks must agree: "all_reduce (sum, float32, 1001 elements)".
  std::string signature() const;
  // "all_reduce #12 (sum, float32, 1001 elements)": for errors.
  std::string text() const;
};

// An operation in flight. See Work for what its methods promise.
class WorkState {
 public:
  virtual ~WorkState() = default;
  virtual bool wait(Deadline limit) = 0;  // false at the limit
  virtual bool done() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;
  virtual std::chrono::milliseconds timeout() const = 0;
  virtual std::optional<Store> store() const = 0;

  // Throws what the group failed with, if it has.
  virtual std::shared_ptr<WorkState> start(Call call) = 0;

  int64_t next_sequence() { return ++sequence_; }

 private:
  int64_t sequence_ = 0;
};

// In place or by a copy: what every operation means in a group of one.
std::shared_ptr<Backend> make_single_backend();

struct GlooOptions {
  Store store;
  GroupOptions group;
  std::chrono::milliseconds operation_timeout =
      kGroupTimeout;         // if not the one that making the group has
  bool hosts_store = false;  // this process must outlive the others' use of the store
};
std::shared_ptr<Backend> make_gloo_backend(GlooOptions options);

}  // namespace lockstep

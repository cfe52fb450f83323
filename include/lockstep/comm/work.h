#pragma once

// Work: an asynchronous operation of a Group.

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

namespace lockstep {

namespace comm {
class WorkState;  // private to the implementation, like WorkAccess
struct WorkAccess;
}  // namespace comm

// What an asynchronous operation returns. It is cheap to copy, and copies stand for the same
// operation.
//
// Example:
//   auto work = group.all_reduce_async(gradient, {.op = lockstep::ReduceOp::Average});
//   compute();    // something that does not touch the gradient
//   work.wait();  // the gradient holds the average from here on
//
// Keep the memory of the operation's tensors alive, and neither read nor write it, until wait() has
// returned: only then it holds the result. The operations of one group are carried out in the order
// in which they were started. Dropping a Work without wait() does no harm; the operation still
// takes place.
//
// Threads: any thread may call any method, and several threads may do so at once.
class Work {
 public:
  // Makes a Work for an operation that is already done.
  Work() = default;
  explicit Work(std::shared_ptr<comm::WorkState> state) : state_(std::move(state)) {}

  // Returns when the result is there; for CUDA tensors, when what the current stream is given from
  // now on comes after the result. Throws TimeoutError at the deadline with which the operation
  // was started, PeerLostError or DesyncError. The group is then unusable, what the tensors hold is
  // undefined, and every later wait() throws the same.
  void wait();

  // Waits as wait() does, but at most for `limit`; then it returns false. The operation goes on,
  // and can be waited for again.
  bool wait_for(std::chrono::milliseconds limit);

  // Whether wait() would return, or throw, without waiting.
  bool done() const;

  // Calls `callback` exactly once: with null when the result is there, or with what wait() would
  // throw when the operation has failed. If the operation is done already, the callback runs in
  // this call, on the calling thread. Otherwise it runs later on a thread of its own, whose current
  // stream comes after the result if that is on a device. There it may
  // start operations of the group and wait for them, in an order that is the same on every rank.
  // What it throws is logged and has no further effect.
  void on_done(std::function<void(std::exception_ptr error)> callback);

 private:
  friend struct comm::WorkAccess;
  std::shared_ptr<comm::WorkState> state_;  // null if there is nothing to wait for
};

}  // namespace lockstep

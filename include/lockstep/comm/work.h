#pragma once

// A collective in flight.

#include <chrono>
#include <exception>
#include <functional>
#include <memory>

namespace lockstep {

namespace comm {
class WorkState;
struct WorkAccess;
}  // namespace comm

// What an asynchronous operation returns. Cheap to copy; copies stand for the same operation.
//
//   auto work = group.all_reduce_async(gradient, {.op = ReduceOp::Average});
//   ...compute...
//   work.wait();          // gradient holds the average from here on
//
// The tensors of the operation must stay alive and untouched until wait() has returned, and hold
// its result only then. Operations of one group are carried out in the order in which they were
// started. Dropping a Work without wait() leaves the result unfetched but breaks nothing.
//
// Threads: any thread may call wait() and done(); several may do so at once.
class Work {
 public:
  // An operation that is already done.
  Work() = default;
  explicit Work(std::shared_ptr<comm::WorkState> state) : state_(std::move(state)) {}

  // Returns when the result is there. Throws PeerLostError, TimeoutError (at the deadline the
  // operation was started with) or DesyncError; the group is then unusable, and every later wait()
  // throws the same.
  void wait();

  // As wait(), but gives up after `limit` with false; that does not harm the operation.
  bool wait_for(std::chrono::milliseconds limit);

  // True once wait() would return or throw without waiting.
  bool done() const;

  // Calls `callback` once, when the result is there (with null) or the operation has failed (with
  // what wait() would throw): on a thread of its own, where it may call the group and wait for it
  // (in an order that is the same on every rank, as ever), or at once on this one if it is done.
  // What it throws is logged and has no further effect.
  void on_done(std::function<void(std::exception_ptr error)> callback);

 private:
  friend struct comm::WorkAccess;
  std::shared_ptr<comm::WorkState> state_;  // null: nothing to wait for
};

}  // namespace lockstep

#pragma once

// Communication hooks: what happens to a bucket of gradients between the ranks.
//
// Example:
//   lockstep::DistributedDataParallel ddp(model, group, {.comm_hook = lockstep::bf16_compress()});
//   ddp.set_comm_hook(lockstep::power_sgd({.rank = 2}));  // between two steps
//   ddp.set_comm_hook(lockstep::make_comm_hook(
//       [](const lockstep::GradBucket& bucket, lockstep::Group& group) {
//         return group.all_reduce_async(bucket.buffer, {.op = lockstep::ReduceOp::Average});
//       }));
//
// Without a hook a bucket is averaged. A hook replaces the whole of that, including the division:
// what it leaves in the buffer is what the optimizer sees. It must leave the same values on every
// rank, or the models drift apart; DdpOptions::verify_every detects that.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/group.h>

namespace lockstep {

// Gradients that travel together. The tensors are handles, so writing to them writes the gradients.
// They are valid until finish() has returned; the next step may lay buckets out differently.
struct GradBucket {
  size_t index = 0;      // buckets of a step start in this order, which is the same on every rank
  bool is_last = false;  // whether it is the last bucket of the step
  // All gradients one after another, in one type; the few elements between them are zero. It lies
  // in memory of Group::allocate().
  at::Tensor buffer;
  std::vector<at::Tensor> gradients;   // views of the buffer, in the parameters' shapes
  std::vector<at::Tensor> parameters;  // in the same order
  std::vector<std::string> names;      // of the parameters
};

// What a bucket goes through. A hook that remembers something between steps belongs to one
// DistributedDataParallel.
// Threads: the thread that runs backward calls a hook, one call at a time. What the hook throws
// comes out of backward(). It should throw on all ranks or on none, since the others wait for its
// operations until their deadline.
class CommHook {
 public:
  virtual ~CommHook() = default;

  // Begins the communication of a bucket whose gradients are complete. It is called in the order of
  // the buckets, so it may use blocking operations too. The Work is waited for at the end of
  // backward.
  virtual Work start(const GradBucket& bucket, Group& group) = 0;

  // Ends it. It is called when that Work is done, in the order of the buckets, after all of them
  // were started. The buffer must hold the result when it returns.
  virtual void finish(const GradBucket& bucket, Group& group);
};

// Makes a hook that consists of start() alone. Throws UsageError for an empty function.
std::shared_ptr<CommHook> make_comm_hook(
    std::function<Work(const GradBucket& bucket, Group& group)> start);

// The average, which is also what happens without a hook.
std::shared_ptr<CommHook> allreduce_hook();

}  // namespace lockstep

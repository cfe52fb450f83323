#pragma once

// Communication hooks: what happens to a bucket of gradients between the ranks.
//
//   lockstep::DistributedDataParallel ddp(model, group, {.comm_hook = lockstep::bf16_compress()});
//   ddp.set_comm_hook(lockstep::power_sgd({.rank = 2}));                  // between two steps
//   ddp.set_comm_hook(lockstep::make_comm_hook([](const lockstep::GradBucket& bucket,
//                                                 lockstep::Group& group) {
//     return group.all_reduce_async(bucket.buffer, {.op = lockstep::ReduceOp::Average});
//   }));
//
// Without a hook a bucket is averaged. A hook replaces that, division included: what it leaves in
// the buffer is what the optimizer sees. It must leave the same values on every rank, or the models
// drift apart (verify_every finds that).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/group.h>

namespace lockstep {

// Gradients that travel together. The tensors are handles: writing to them writes the gradients.
struct GradBucket {
  size_t index = 0;      // buckets of a step start in this order, the same on every rank
  bool is_last = false;  // of the step
  // All of them, one behind the other, in one type; the few elements between them are zero. Memory
  // of Group::allocate().
  at::Tensor buffer;
  std::vector<at::Tensor> gradients;   // views of the buffer, in the parameters' shapes
  std::vector<at::Tensor> parameters;  // the same order
  std::vector<std::string> names;      // of the parameters
};

// Threads: called by the thread that runs backward, one call at a time. What it throws comes out of
// backward().
class CommHook {
 public:
  virtual ~CommHook() = default;

  // The bucket's gradients are there: begin. Called in the order of the buckets, so blocking
  // operations are allowed too; the Work is waited for at the end of backward.
  virtual Work start(const GradBucket& bucket, Group& group) = 0;

  // That Work is done. Called in the order of the buckets, after all are started; the buffer must
  // hold the result when it returns.
  virtual void finish(const GradBucket& bucket, Group& group);
};

// A hook that is only a start().
std::shared_ptr<CommHook> make_comm_hook(
    std::function<Work(const GradBucket& bucket, Group& group)> start);

// The average, as without a hook.
std::shared_ptr<CommHook> allreduce_hook();

}  // namespace lockstep

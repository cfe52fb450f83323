#pragma once

// The options of DistributedDataParallel, and the part of it that does not depend on the model's
// type.
//
// Example:
//   lockstep::DdpOptions options{.bucket_bytes = lockstep::kAutoBucketBytes, .verify_every = 100};
//   lockstep::DistributedDataParallel ddp(model, group, options);

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/comm/group.h>
#include <lockstep/ddp/comm_hook.h>
#include <lockstep/ddp/outputs.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

inline constexpr int64_t kAutoBucketBytes = 0;

// Whether buckets are reduced while backward still computes. Auto does so unless the ranks of a
// host have no core to spare for it: there the reduction would only take turns with the
// computation, at the cost of the switching. The cores that count are those that all ranks may use
// together, however each is bound, so every rank comes to the same answer.
enum class Overlap { Auto, Always, Never };

// The same on every rank, or the constructor throws UsageError.
struct DdpOptions {
  // How many bytes of gradients are reduced together. A gradient of 1 MiB or more is reduced by
  // itself, where autograd wrote it. kAutoBucketBytes tries several sizes in the first steps, and
  // keeps and logs the fastest.
  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;  // small, so that the first reduction starts early
  Overlap overlap = Overlap::Auto;
  // Allows backward not to reach every parameter on every rank. A parameter that only some ranks
  // reached gets the average with zeros for the others; one that no rank reached keeps its
  // gradient. Without this a parameter without a gradient is an error, since it is mostly a
  // mistake.
  bool find_unused_parameters = false;
  // Promises that every step reaches the same parameters equally often. What the first step does
  // not reach is never waited for, and later steps are checked.
  bool static_graph = false;
  bool broadcast_buffers = true;     // rank 0's, before the first training forward of each step
  bool init_sync = true;             // false lets ranks keep their own values at the start
  std::vector<std::string> ignored;  // the names of parameters and buffers that are left alone
  // The number of logical ranks: a power of two and a multiple of the group's size, or 0 for that
  // size. Each rank makes shards / size backwards per step, one for each of its shards of the
  // global batch. Shards are summed in the order in which ranks would be, so 8 shards on 8, 4, 2 or
  // 1 ranks give the same bits.
  int shards = 0;
  int64_t verify_every = 0;             // how many steps lie between two verify(); 0 means never
  std::shared_ptr<CommHook> comm_hook;  // null means the average
};

// The times of the last synchronised backward on this rank.
struct StepTimes {
  int64_t step = 0;                     // counts synchronised backwards from 1
  std::chrono::nanoseconds backward{};  // from the first gradient to the end of backward
  std::chrono::nanoseconds copy_in{};   // the copying of gradients into buckets
  std::chrono::nanoseconds reduce{};    // while a reduction was under way
  std::chrono::nanoseconds wait{};      // at the end, with nothing else to do: what was not hidden
};

struct JoinOptions {
  // true counts a rank that has run out of batches as zeros, as PyTorch does. false takes the
  // average over the ranks that still have some.
  bool divide_by_initial_size = true;
  bool throw_on_early_termination = false;  // true: every rank throws as soon as one runs out
};

// What DistributedDataParallel does, for callers that run forward() themselves; methods of the same
// name are described there. It shares the module.
// Threads: as for DistributedDataParallel.
class Reducer {
 public:
  Reducer(std::shared_ptr<torch::nn::Module> module, Group group, DdpOptions options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Call these before and after each forward. `outputs` are the tensors that the loss is made of.
  void begin_forward();
  void end_forward(const std::vector<at::Tensor>& outputs);

  void step_in_backward(torch::optim::Optimizer& optimizer);
  void set_comm_hook(std::shared_ptr<CommHook> hook);
  double clip_grad_norm(double max_norm);
  void verify();
  void rebind(Group group);
  int num_local_shards() const;
  int first_shard() const;
  StepTimes last_step() const;
  std::vector<int64_t> bucket_sizes_bytes() const;

 private:
  friend class NoSync;
  friend class Join;
  class Impl;
  std::shared_ptr<Impl> impl_;
};

// The guard that DistributedDataParallel::no_sync() returns. It shares the reducer.
class NoSync {
 public:
  explicit NoSync(std::shared_ptr<Reducer> reducer);
  ~NoSync();
  NoSync(NoSync&& other) noexcept = default;  // `other` guards nothing afterwards
  NoSync& operator=(NoSync&& other) noexcept;
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<Reducer> reducer_;
};

// Training with different numbers of batches. Every rank makes one before its loop and calls wait()
// after it.
//
// Example:
//   auto join = ddp.join();
//   for (auto& batch : batches) {
//     optimizer.zero_grad();
//     loss(ddp(batch.input), batch.target).backward();
//     optimizer.step();
//   }
//   join.wait();  // takes part in the others' steps, with zeros, until all ranks are here
//
// wait() ends with the parameters and buffers of the rank that trained longest, on every rank. It
// takes part only in the wrapper's own communication, so other collectives of the loop, such as
// those of SyncBatchNorm, must not depend on the number of batches. Neither several shards per rank
// nor step_in_backward() work with it: the constructor throws UsageError.
class Join {
 public:
  Join(std::shared_ptr<Reducer> reducer, JoinOptions options);
  ~Join();  // without a wait(), this rank leaves the others to their deadline
  Join(Join&& other) noexcept = default;  // `other` has nothing to wait for afterwards
  Join& operator=(Join&& other) noexcept;
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // Collective. Throws UsageError on every rank if throw_on_early_termination asked for it.
  void wait();

 private:
  std::shared_ptr<Reducer> reducer_;
};

}  // namespace lockstep

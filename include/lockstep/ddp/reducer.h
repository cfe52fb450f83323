#pragma once

// The gradient machinery behind DistributedDataParallel, apart from the model's type; see there.

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

// Are buckets reduced while backward still computes? Auto: unless the ranks of one host have no
// core to spare for it; there it would only take turns with the computation, and cost the
// switching. The cores are those that all the ranks may use together, however each is bound, and
// every rank comes to the same answer.
enum class Overlap { Auto, Always, Never };

struct DdpOptions {
  // Gradients that are reduced together; those of 1 MiB and more are reduced by themselves, where
  // autograd wrote them. kAutoBucketBytes: several sizes are tried in the first steps, and the
  // fastest is kept and logged.
  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;  // small, so that the first reduction starts early
  Overlap overlap = Overlap::Auto;
  // Backward need not reach every parameter on every rank. One that only some ranks reached gets
  // the average with zeros for the others; one that no rank reached keeps its gradient as it was.
  // Without this a parameter without a gradient is an error, since it is mostly a mistake.
  bool find_unused_parameters = false;
  // Every step reaches the same parameters, equally often: what the first step does not reach is
  // never waited for. Later steps are checked.
  bool static_graph = false;
  bool broadcast_buffers = true;     // rank 0's, before the first training forward of each step
  bool init_sync = true;             // false: ranks keep their own values at the start
  std::vector<std::string> ignored;  // names of parameters and buffers that are left alone
  // Logical ranks (a power of two, a multiple of the group's size; 0: the group's size). Each rank
  // computes shards / size backwards per step, one shard of the global batch each; they are summed
  // in the same order as ranks would be, so 8 shards on 8, 4, 2 or 1 ranks give the same bits.
  int shards = 0;
  int64_t verify_every = 0;             // steps between two verify(); 0: never
  std::shared_ptr<CommHook> comm_hook;  // null: the average
};

// Of the last synchronised backward, on this rank.
struct StepTimes {
  int64_t step = 0;                     // counts synchronised backwards from 1
  std::chrono::nanoseconds backward{};  // from its first gradient to its end
  std::chrono::nanoseconds copy_in{};   // of gradients into buckets
  std::chrono::nanoseconds reduce{};    // in which a reduction was under way
  std::chrono::nanoseconds wait{};  // at the end, with nothing else to do: exposed communication
};

struct JoinOptions {
  // A rank that has run out of batches counts as zeros, as it does in PyTorch. False: the average
  // is over those that still have some.
  bool divide_by_initial_size = true;
  bool throw_on_early_termination = false;  // true: every rank throws as soon as one runs out
};

// Threads: as DistributedDataParallel.
class Reducer {
 public:
  Reducer(std::shared_ptr<torch::nn::Module> module, Group group, DdpOptions options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

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

// See DistributedDataParallel::no_sync().
class NoSync {
 public:
  explicit NoSync(std::shared_ptr<Reducer> reducer);
  ~NoSync();
  NoSync(NoSync&& other) noexcept = default;  // the other one guards nothing any more
  NoSync& operator=(NoSync&& other) noexcept;
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<Reducer> reducer_;
};

// Uneven inputs. Every rank makes one before its loop and calls wait() behind it:
//
//   auto join = ddp.join();
//   for (auto& batch : batches) { ... ddp(batch) ... backward() ... optimizer.step() ... }
//   join.wait();   // takes part in the others' steps, with zeros, until all have come here
//
// wait() ends with the parameters and buffers of the rank that trained longest on every rank. Only
// the wrapper's own communication is taken part in: other collectives of the loop (SyncBatchNorm)
// must not depend on the number of batches.
class Join {
 public:
  Join(std::shared_ptr<Reducer> reducer, JoinOptions options);
  ~Join();
  Join(Join&& other) noexcept = default;  // the other one has nothing to wait for any more
  Join& operator=(Join&& other) noexcept;
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // Collective. Throws UsageError on every rank if throw_on_early_termination asked for it.
  void wait();

 private:
  std::shared_ptr<Reducer> reducer_;
};

}  // namespace lockstep

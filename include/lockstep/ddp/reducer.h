#pragma once

// The options of DistributedDataParallel, and Reducer, the part of it that does not depend on the
// model's type and that has most of its methods.
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
  bool broadcast_buffers = true;  // rank 0's, before the first training forward of each step
  bool init_sync = true;          // false lets ranks keep their own values at the start
  // Lets the first wrapper with a parameter of 1 MiB or more replace libtorch's CPU allocator, so
  // that large gradients need not be copied (see distributed_data_parallel.h). false leaves the
  // allocator alone and copies them into the group's memory, as LOCKSTEP_CPU_ALLOCATOR=torch does;
  // the sums are the same.
  bool replace_cpu_allocator = true;
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

class Join;
class NoSync;

// What DistributedDataParallel does, apart from the forward: it derives from this class. On its own
// it is for a program that calls forward() itself, for example one whose model has several of them.
// It shares the module. It is cheap to copy, and copies stand for the same reducer.
// Threads: as for DistributedDataParallel.
//
// Example:
//   lockstep::Reducer reducer(model.ptr(), group);
//   reducer.begin_forward();
//   auto output = model->forward(batch.input);
//   reducer.end_forward({output});
//   loss(output, batch.target).backward();
class Reducer {
 public:
  // Collective. Throws UsageError, on every rank, if the model or the options differ between ranks,
  // or if an option is wrong.
  Reducer(std::shared_ptr<torch::nn::Module> module, Group group, DdpOptions options = {});

  // Call these before and after each forward. In training mode begin_forward() broadcasts rank 0's
  // buffers, once per step. `outputs` are the tensors that the loss is made of.
  void begin_forward();
  void end_forward(const std::vector<at::Tensor>& outputs);

  // While the guard exists, backward adds gradients up on each rank alone. The first backward after
  // it averages what has accumulated. Only the place of backward() counts, not that of the forward.
  // The guard can be moved, for example into a std::optional.
  //
  // Example:
  //   for (auto& micro_batch : all_but_last) {
  //     auto guard = ddp.no_sync();
  //     loss(ddp(micro_batch.input), micro_batch.target).backward();
  //   }
  //   loss(ddp(last.input), last.target).backward();
  [[nodiscard]] NoSync no_sync();

  // Lets ranks have different numbers of batches. See Join.
  [[nodiscard]] Join join(JoinOptions options = {});

  // From the next backward on, `optimizer` updates each parameter as soon as its bucket is reduced,
  // and the gradient is freed at once. Do not call optimizer.step(); the bits are those of the
  // ordinary way. It works with no_sync(), but not with clipping, retain_graph or LBFGS. The
  // optimizer must hold parameters of this model only, or the call throws UsageError, and it must
  // outlive the wrapper.
  void step_in_backward(torch::optim::Optimizer& optimizer);

  // Replaces what happens to buckets; null stands for the average. All ranks call it, between two
  // steps. Throws UsageError inside a backward.
  void set_comm_hook(std::shared_ptr<CommHook> hook);

  // Returns the norm of all gradients together, and scales them down to max_norm if it is larger.
  // Call it after backward. It does not communicate, and returns the same number on every rank.
  // Throws UsageError for a max_norm that is not positive, and after step_in_backward(), where
  // there is nothing left to clip.
  double clip_grad_norm(double max_norm);

  // The same on the device of the gradients, without waiting for it: the limit and the norm are
  // float64 tensors of no dimension there. An undefined limit is none. If the norm is not finite,
  // the gradients are of no use afterwards. Throws UsageError for a limit of another type or shape.
  at::Tensor clip_grad_norm(const at::Tensor& max_norm);

  // Collective. Throws DesyncError on every rank, with the name of the first parameter that
  // differs, unless all parameters are the same on all ranks, bit for bit. DdpOptions::verify_every
  // calls it regularly.
  void verify();

  // Collective over the new group. Continues there with the same gradient memory, at the same
  // addresses. It is meant for the survivors of a lost rank; each keeps its own parameters.
  void rebind(Group group);

  // With DdpOptions::shards, a rank computes the shards [first_shard(), first_shard() +
  // num_local_shards()), one after another.
  int num_local_shards() const;
  int first_shard() const;

  // Where the time of the last synchronised backward went, and how the buckets are laid out.
  StepTimes last_step() const;
  std::vector<int64_t> bucket_sizes_bytes() const;

 private:
  friend class NoSync;
  friend class Join;
  class Impl;
  std::shared_ptr<Impl> impl_;
};

// The guard that no_sync() returns. It shares the reducer.
class NoSync {
 public:
  explicit NoSync(Reducer reducer);
  ~NoSync();
  NoSync(NoSync&& other) noexcept = default;  // `other` guards nothing afterwards
  NoSync& operator=(NoSync&& other) noexcept;
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  Reducer reducer_;
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
  Join(Reducer reducer, JoinOptions options);
  ~Join();  // without a wait(), this rank leaves the others to their deadline
  Join(Join&& other) noexcept = default;  // `other` has nothing to wait for afterwards
  Join& operator=(Join&& other) noexcept;
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // Collective. Throws UsageError on every rank if throw_on_early_termination asked for it.
  void wait();

 private:
  Reducer reducer_;
};

}  // namespace lockstep

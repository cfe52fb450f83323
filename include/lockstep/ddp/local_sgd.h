#pragma once

// Post-local SGD (Lin et al. 2018, "Don't Use Large Mini-Batches, Use Local SGD"). At first
// gradients are averaged in every step; later each rank steps by itself, and the models are
// averaged every `period` steps. That sends the model once per period instead of the gradients in
// every step.
//
// Example:
//   lockstep::DistributedDataParallel ddp(
//       model, group, {.comm_hook = lockstep::local_sgd({.start_step = 100})});
//   lockstep::PeriodicModelAverager averager(group, {.period = 4, .warmup_steps = 100});
//   for (int64_t step = 0; step < num_steps; ++step) {
//     optimizer.zero_grad();
//     loss(ddp(batch.input), batch.target).backward();  // from step 100 on, only this rank's
//     optimizer.step();
//     averager.average(*model);  // averages in the steps 100, 104, 108, ...
//   }
//
// Between two averages the ranks' models differ, by design. So leave DdpOptions::verify_every off,
// and save or evaluate only after an average() that returned true. The optimizer's state (momentum)
// and the model's buffers remain each rank's own; DDP still broadcasts the buffers if it is asked
// to.
//
// Errors: a collective that fails throws what Group promises, and the parameters are as before.
// Threads: one thread at a time, as for DistributedDataParallel.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <lockstep/comm/group.h>
#include <lockstep/ddp/comm_hook.h>

namespace torch::nn {
class Module;
}

namespace lockstep {

struct LocalSgdOptions {
  // >= 0: in this many steps the gradients of all ranks are averaged. Give the averager the same
  // number as warmup_steps.
  int64_t start_step = 100;

  // The ranks that average gradients in every step after that, for example those of one host
  // (group.split(node)). Without a subgroup each rank keeps its own gradients.
  std::optional<Group> subgroup;
};

// Makes the hook. A step is one synchronised backward. Ranks that meet in a new group
// (DistributedDataParallel::rebind) continue from the highest count among them. The hook belongs to
// one DistributedDataParallel. Throws UsageError if start_step is negative.
std::shared_ptr<CommHook> local_sgd(LocalSgdOptions options = {});

struct ModelAveragerOptions {
  int64_t period = 4;        // >= 1: how many calls lie between two averages; 1 averages in each
  int64_t warmup_steps = 0;  // >= 0: how many calls at first do nothing; the hook's start_step
};

// Averages the parameters of a model over the ranks of a group.
class PeriodicModelAverager {
 public:
  // Throws UsageError if an option is out of range.
  explicit PeriodicModelAverager(Group group, ModelAveragerOptions options = {});
  ~PeriodicModelAverager();
  PeriodicModelAverager(PeriodicModelAverager&&) noexcept;
  PeriodicModelAverager& operator=(PeriodicModelAverager&&) noexcept;

  // Call it on every rank after each step of the optimizer. Calls are counted from 0. Call number
  // warmup_steps, and every period-th call from there, is collective: it replaces each parameter
  // that requires a gradient by its average over the group and returns true. The others return
  // false at once.
  //
  // The parameters travel in one all-reduce per type, through memory that is as large as they are
  // and is kept: on the CPU that of Group::allocate(), otherwise on their device. A parameter that
  // is listed twice counts once. Throws UsageError if no parameter requires a gradient, if one is
  // not a dense floating tensor, or if they are on several devices.
  bool average(const torch::nn::Module& module);
  bool average(const std::vector<at::Tensor>& parameters);

  // Continues with another group, after an error of the first. In the next average() its ranks
  // agree on the highest count of calls among them.
  void rebind(Group group);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep

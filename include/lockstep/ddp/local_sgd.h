#pragma once

// Post-local SGD (Lin et al. 2018, "Don't Use Large Mini-Batches, Use Local SGD"): at first
// gradients are averaged in every step, later each rank steps by itself and the models are averaged
// now and then. It sends the model once per `period` steps instead of the gradients in each.
//
//   lockstep::DistributedDataParallel ddp(
//       model, group, {.comm_hook = lockstep::local_sgd({.start_step = 100})});
//   lockstep::PeriodicModelAverager averager(group, {.period = 4, .warmup_steps = 100});
//   for (...) {
//     optimizer.zero_grad();
//     loss(ddp(batch.input), batch.target).backward();     // from step 100 on: this rank's
//     gradient optimizer.step(); averager.average(*model);                            // steps 100,
//     104, 108, ...
//   }
//
// Between two averages the ranks' models differ, by design: leave DdpOptions::verify_every off, and
// save or evaluate only after an average() that returned true. What the optimizer remembers
// (momentum) and the model's buffers stay each rank's own; DDP still broadcasts buffers if asked
// to.
//
// Errors: a collective that fails throws what Group promises; the parameters are then as they were.
// Threads: as DistributedDataParallel, one at a time.

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
  // >= 0: this many steps average the gradients of all ranks. Give the averager the same number.
  int64_t start_step = 100;

  // Who averages gradients after that, in every step: the ranks of one host, say
  // (group.split(node)). Nothing: each rank keeps its own.
  std::optional<Group> subgroup;
};

// Throws UsageError if start_step is negative. A step is one synchronised backward; ranks that meet
// in a new group (DistributedDataParallel::rebind) go on from the highest count among them. A hook
// belongs to one DistributedDataParallel.
std::shared_ptr<CommHook> local_sgd(LocalSgdOptions options = {});

struct ModelAveragerOptions {
  int64_t period = 4;        // >= 1: an average every so many calls (1: in each)
  int64_t warmup_steps = 0;  // >= 0: the first calls, which do nothing; start_step of the hook
};

class PeriodicModelAverager {
 public:
  // Throws UsageError when an option is out of range.
  explicit PeriodicModelAverager(Group group, ModelAveragerOptions options = {});
  ~PeriodicModelAverager();
  PeriodicModelAverager(PeriodicModelAverager&&) noexcept;
  PeriodicModelAverager& operator=(PeriodicModelAverager&&) noexcept;

  // Call it on every rank after each step of the optimizer. Call number warmup_steps, counted from
  // 0, and every period-th from there replaces each parameter that requires a gradient by its
  // average over the group, and returns true; the others return false at once.
  //
  // The parameters travel together, in one all-reduce for each type of theirs, through memory of
  // Group::allocate() as large as they are, which is kept. Shared ones count once.
  // Throws UsageError if none requires a gradient, or one is not a dense floating CPU tensor.
  bool average(const torch::nn::Module& module);
  bool average(const std::vector<at::Tensor>& parameters);

  // Goes on with another group, after an error of the first: the next average() agrees with its
  // ranks on the highest count of calls among them.
  void rebind(Group group);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep

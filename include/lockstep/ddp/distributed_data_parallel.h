#pragma once

// DistributedDataParallel: one model on every rank, one gradient between them.
//
//   MyModel model;
//   lockstep::DistributedDataParallel ddp(model, group);   // rank 0's weights, on every rank
//   optimizer.zero_grad();
//   loss(ddp(batch.input), batch.target).backward();       // ends with the average of all ranks
//   optimizer.step();                                      // the same update on every rank
//
// Construction compares the model across ranks (the first difference is named) and gives every rank
// rank 0's parameters and buffers. Gradients then live in the group's own memory: small ones are
// copied once, into the bucket in which they travel together; large ones are reduced where autograd
// wrote them. Where a host has cores to spare a bucket is reduced as soon as it is full and those
// before it are under way, while backward still works on earlier layers. After the first step the
// buckets are laid out anew in the order in which rank 0 got its gradients. In a group of one the
// wrapper does nothing.
//
// Every backward through the wrapped model outside no_sync() is synchronised, and all ranks must
// make it. What a rank does differently is an error on every rank, never a hang: a parameter
// without a gradient is a UsageError that names it (see find_unused_parameters), a missing backward
// a TimeoutError or DesyncError. Errors come out of backward().
//
// Call the model through the wrapper, ddp(input): C++ modules have no forward hooks, and buffers,
// join() and checkpointed backward need to see the forward.
//
// Threads: one forward or backward at a time; backward may run on any thread.

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <lockstep/comm/group.h>
#include <lockstep/ddp/comm_hook.h>
#include <lockstep/ddp/reducer.h>

namespace lockstep {

// Wraps a module holder (TORCH_MODULE) or a shared_ptr to a module; calls go to its forward().
template <typename Model>
class DistributedDataParallel {
 public:
  // Collective. Throws UsageError if the model differs between ranks or an option is wrong.
  DistributedDataParallel(Model model, Group group, DdpOptions options = {})
      : model_(std::move(model)),
        reducer_(std::make_shared<Reducer>(pointer(), std::move(group), std::move(options))) {}

  // forward(). In training: rank 0's buffers first, once per step.
  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) {
    reducer_->begin_forward();
    auto outputs = model_->forward(std::forward<Inputs>(inputs)...);
    reducer_->end_forward(tensors_in(outputs));
    return outputs;
  }

  Model& module() { return model_; }

  // The model's own, for code that was written for it: AdamW optimizer(ddp.parameters()).
  std::vector<at::Tensor> parameters() const { return model_->parameters(); }
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const {
    return model_->named_parameters();
  }
  void train(bool on = true) { model_->train(on); }
  void eval() { model_->eval(); }
  bool is_training() const { return model_->is_training(); }
  void zero_grad(bool set_to_none = true) { model_->zero_grad(set_to_none); }

  // While the guard lives, backward adds gradients up on each rank alone; the first backward after
  // it averages what has come together. Only where backward is called counts. The guard can be
  // moved, into a std::optional for example.
  //
  //   for (auto& micro_batch : all_but_last) {
  //     auto guard = ddp.no_sync();
  //     loss(ddp(micro_batch)).backward();
  //   }
  //   loss(ddp(last)).backward();
  [[nodiscard]] NoSync no_sync() { return NoSync(reducer_); }

  // Ranks may have different numbers of batches: see Join.
  [[nodiscard]] Join join(JoinOptions options = {}) { return Join(reducer_, options); }

  // From the next backward on each parameter is updated by `optimizer` as soon as its bucket is
  // reduced, and its gradient is given up at once: do not call optimizer.step(). The same bits as
  // the ordinary way. Works with no_sync(); not with clipping, retain_graph or LBFGS. The optimizer
  // must hold parameters of this model only, and outlive the wrapper.
  void step_in_backward(torch::optim::Optimizer& optimizer) {
    reducer_->step_in_backward(optimizer);
  }

  // Replaces what happens to buckets (null: the average). Between two steps, on all ranks.
  void set_comm_hook(std::shared_ptr<CommHook> hook) { reducer_->set_comm_hook(std::move(hook)); }

  // The norm of all gradients together, which it scales down to max_norm if it is larger. After
  // backward; the same number on every rank, and no communication. Throws UsageError under
  // step_in_backward, where there is nothing left to clip.
  double clip_grad_norm(double max_norm) { return reducer_->clip_grad_norm(max_norm); }

  // Collective: throws DesyncError on every rank if a parameter is not the same, bit for bit, on
  // all; the first one that differs is named. verify_every calls it every so many steps.
  void verify() { reducer_->verify(); }

  // Collective over the new group: goes on there with the same gradient memory, at the same
  // addresses. For survivors of a lost rank; parameters are as each rank has them.
  void rebind(Group group) { reducer_->rebind(std::move(group)); }

  // With DdpOptions::shards: what this rank computes, one after another, shards [first_shard(),
  // first_shard() + num_local_shards()).
  int num_local_shards() const { return reducer_->num_local_shards(); }
  int first_shard() const { return reducer_->first_shard(); }

  StepTimes last_step() const { return reducer_->last_step(); }
  std::vector<int64_t> bucket_sizes_bytes() const { return reducer_->bucket_sizes_bytes(); }

 private:
  std::shared_ptr<torch::nn::Module> pointer() {
    if constexpr (requires { model_.ptr(); }) {
      return model_.ptr();
    } else {
      return model_;
    }
  }

  Model model_;
  std::shared_ptr<Reducer> reducer_;
};

}  // namespace lockstep

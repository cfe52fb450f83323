#pragma once

// DistributedDataParallel: the same model on every rank, trained on the average of all gradients.
//
// Example:
//   MyModel model;
//   torch::optim::SGD optimizer(model->parameters(), 0.01);
//   lockstep::DistributedDataParallel ddp(model, group);  // gives every rank rank 0's weights
//   optimizer.zero_grad();
//   loss(ddp(batch.input), batch.target).backward();      // ends with the average over all ranks
//   optimizer.step();                                     // makes the same update on every rank
//
// Construction compares the model across ranks, names the first difference, and gives every rank
// the parameters and buffers of rank 0. From then on gradients live in the group's memory: small
// ones are copied once, into the bucket in which they travel together, and large ones are reduced
// where autograd wrote them. Where a host has cores to spare, a bucket is reduced while backward
// still computes, as soon as it is full and those before it are under way. After the first step the
// buckets are laid out anew, in the order in which rank 0 got its gradients. In a group of one the
// wrapper does nothing.
//
// Every backward through the wrapped model outside no_sync() is synchronised, and all ranks must
// make it. Call the model through the wrapper, ddp(input): C++ modules have no forward hooks, and
// buffers, join() and checkpointed backward need to see the forward.
//
// What a rank does differently is an error on every rank, and never a hang. Errors come out of
// backward(). A parameter without a gradient is a UsageError that names it (see
// find_unused_parameters). A missing backward is a TimeoutError or a DesyncError. After any error
// the gradients of the step are undefined. After a UsageError the group is still usable. After a
// CommError it is not: make a new one of the ranks that are left and call rebind().
//
// What it does to the process: the first wrapper that reduces a dense parameter of 1 MiB or more
// replaces libtorch's CPU allocator (c10::SetCPUAllocator), for as long as the process runs;
// tensors remember the allocator that made them, so it cannot be taken back. The new allocator
// passes every request on to the one before it, with one exception: while a synchronised backward
// runs on the calling thread, a request for exactly the size of such a parameter gets group memory,
// so that the gradient need not be copied. Each CPU tensor that is freed costs a lookup of its
// address. To switch it off, set DdpOptions::replace_cpu_allocator to false, or
// LOCKSTEP_CPU_ALLOCATOR=torch in the environment of every rank: the allocator is then left alone,
// and large gradients are copied. An allocator that has no raw_deleter() is never replaced.
// docs/decisions/0005-gradients-where-autograd-writes-them.md gives the reasons.
//
// Threads: one forward or backward at a time. Backward may run on any thread.

#include <cstdint>
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

// Wraps a module holder (TORCH_MODULE) or a shared_ptr to a module, and shares it with the caller.
// Calls go to its forward(). Its methods beside those below are Reducer's: no_sync(), join(),
// step_in_backward(), set_comm_hook(), clip_grad_norm(), verify(), rebind() and what they report,
// in lockstep/ddp/reducer.h, which has DdpOptions too.
template <typename Model>
class DistributedDataParallel : public Reducer {
 public:
  // Collective. Throws UsageError, on every rank, if the model or the options differ between ranks,
  // or if an option is wrong.
  DistributedDataParallel(Model model, Group group, DdpOptions options = {})
      : Reducer(pointer_to(model), std::move(group), std::move(options)),
        model_(std::move(model)) {}

  // Calls forward(). In training mode it first broadcasts rank 0's buffers, once per step.
  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) {
    begin_forward();
    auto outputs = model_->forward(std::forward<Inputs>(inputs)...);
    end_forward(tensors_in(outputs));
    return outputs;
  }

  Model& module() { return model_; }

  // These are the model's own, so that code written for it can be given the wrapper.
  std::vector<at::Tensor> parameters() const { return model_->parameters(); }
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const {
    return model_->named_parameters();
  }
  void train(bool on = true) { model_->train(on); }
  void eval() { model_->eval(); }
  bool is_training() const { return model_->is_training(); }
  void zero_grad(bool set_to_none = true) { model_->zero_grad(set_to_none); }

 private:
  static std::shared_ptr<torch::nn::Module> pointer_to(const Model& model) {
    if constexpr (requires { model.ptr(); }) {
      return model.ptr();
    } else {
      return model;
    }
  }

  Model model_;
};

}  // namespace lockstep

#pragma once

// DistributedDataParallel: one model on every rank, one gradient between them.
//
//   MyModel model;
//   lockstep::DistributedDataParallel ddp(model, group);   // rank 0's weights, on every rank
//   optimizer.zero_grad();
//   loss(ddp(batch.input), batch.target).backward();       // gradients are averages when it
//   returns optimizer.step();                                      // the same update on every rank
//
// Parameters are grouped into buckets of about `bucket_bytes`, last layer first; as soon as all
// gradients of a bucket are there its all-reduce starts, while backward still works on earlier
// layers. The order of the buckets is that of the model, so all ranks agree on it. A parameter that
// a rank's backward did not reach counts there as a zero gradient.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <lockstep/comm/group.h>

namespace lockstep {

struct DdpOptions {
  int64_t bucket_bytes = 25 << 20;  // > 0: gradients that are reduced together
};

// The gradient machinery, apart from the model's type.
// Threads: backward may run on any thread; one backward at a time.
class Reducer {
 public:
  // Broadcasts rank 0's parameters and buffers, then watches the parameters' gradients.
  // Throws UsageError if the model differs between ranks (the first difference is named) or has
  // nothing to train.
  Reducer(std::shared_ptr<torch::nn::Module> module, Group group, DdpOptions options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

// Wraps a module holder (TORCH_MODULE) or a shared_ptr to a module; calls go to its forward().
template <typename Model>
class DistributedDataParallel {
 public:
  DistributedDataParallel(Model model, Group group, DdpOptions options = {})
      : model_(std::move(model)),
        reducer_(std::make_shared<Reducer>(pointer(), std::move(group), options)) {}

  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) {
    return model_->forward(std::forward<Inputs>(inputs)...);
  }

  Model& module() { return model_; }

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

#pragma once

// The ways of making a training step that `lockstep bench ddp` compares, each on a model and an
// optimizer of its own.

#include <chrono>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/optim/sgd.h>

#include <lockstep/comm/group.h>

#include "bench/ddp/bench_models.h"

namespace lockstep {

// Where a step of lockstep's spent its time on this rank; see StepTimes.
struct BenchShares {
  std::chrono::nanoseconds copy_in{};
  std::chrono::nanoseconds reduce{};
  std::chrono::nanoseconds wait{};
};

class DdpVariant {
 public:
  explicit DdpVariant(std::shared_ptr<BenchModel> model);
  virtual ~DdpVariant() = default;

  const std::shared_ptr<BenchModel>& model() const { return model_; }

  // Sets the gradients to none and makes forward, loss, backward and update.
  void step(const BenchBatch& batch);

  void drop_gradients();

  // Returns the shares of the last step. Only lockstep's are known.
  virtual BenchShares shares() const { return {}; }

 protected:
  virtual at::Tensor forward(const at::Tensor& input) = 0;

 private:
  std::shared_ptr<BenchModel> model_;
  torch::optim::SGD optimizer_;
};

// Every rank trains by itself.
std::unique_ptr<DdpVariant> make_bare_variant(std::shared_ptr<BenchModel> model);

// Collective.
std::unique_ptr<DdpVariant> make_lockstep_variant(const std::shared_ptr<BenchModel>& model,
                                                  Group group);

// Collective: c10d::Reducer over `gloo`, called as DistributedDataParallel of PyTorch 2.11 calls it
// with gradient_as_bucket_view and the defaults otherwise.
std::unique_ptr<DdpVariant> make_c10d_variant(const std::shared_ptr<BenchModel>& model,
                                              c10::intrusive_ptr<c10d::Backend> gloo);

}  // namespace lockstep

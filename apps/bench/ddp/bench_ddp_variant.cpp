#include "bench/ddp/bench_ddp_variant.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/nn/functional/loss.h>

#include <lockstep/ddp/distributed_data_parallel.h>

namespace lockstep {
namespace {

constexpr double kLearningRate = 0.01;

class BareVariant : public DdpVariant {
 public:
  using DdpVariant::DdpVariant;

 private:
  at::Tensor forward(const at::Tensor& input) override { return model()->forward(input); }
};

class LockstepVariant : public DdpVariant {
 public:
  LockstepVariant(const std::shared_ptr<BenchModel>& model, Group group)
      : DdpVariant(model), ddp_(model, std::move(group)) {}

  BenchShares shares() const override {
    const StepTimes times = ddp_.last_step();
    return {.copy_in = times.copy_in, .reduce = times.reduce, .wait = times.wait};
  }

 private:
  at::Tensor forward(const at::Tensor& input) override { return ddp_(input); }

  DistributedDataParallel<std::shared_ptr<BenchModel>> ddp_;
};

c10::intrusive_ptr<c10d::ProcessGroup> process_group_of(c10::intrusive_ptr<c10d::Backend> gloo) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(gloo->getRank(), gloo->getSize());
  const auto type = c10d::ProcessGroup::BackendType::GLOO;
  group->setBackend(at::kCPU, type, std::move(gloo));
  group->setDefaultBackend(type);
  return group;
}

// The comments name the Python methods of torch/nn/parallel/distributed.py that this follows.
class C10dVariant : public DdpVariant {
 public:
  C10dVariant(const std::shared_ptr<BenchModel>& model, c10::intrusive_ptr<c10d::Backend> gloo)
      : DdpVariant(model), group_(process_group_of(std::move(gloo))) {
    const auto parameters = model->parameters();
    buffers_ = model->buffers();
    // __init__: the same models on all ranks.
    c10d::verify_params_across_processes(group_, parameters, {});
    std::vector<at::Tensor> states;
    for (const auto& tensors : {parameters, buffers_}) {
      for (const at::Tensor& tensor : tensors) {
        states.push_back(tensor.detach());
      }
    }
    c10d::broadcast_coalesced(group_, states, kBroadcastBytes);
    // _ddp_init_helper: one bucket until the order of the gradients is known.
    const std::vector<bool> is_sparse(parameters.size(), false);
    auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
        parameters, {std::numeric_limits<int64_t>::max()}, is_sparse));
    std::reverse(buckets.begin(), buckets.end());
    std::unordered_map<size_t, std::string> names;
    for (const auto& item : model->named_parameters()) {
      names.emplace(names.size(), item.key());
    }
    reducer_ = std::make_unique<c10d::Reducer>(
        parameters, buckets, group_, is_sparse, c10d::kDefaultBucketBytesCap,
        /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/true, names,
        c10d::kDefaultFirstBucketBytes, /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
  }

 private:
  static constexpr size_t kBroadcastBytes = 250 << 20;  // broadcast_bucket_size

  at::Tensor forward(const at::Tensor& input) override {
    // _pre_forward
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
    if (!buffers_.empty()) {
      c10d::broadcast_coalesced(group_, buffers_, kBroadcastBytes);
    }
    at::Tensor output = model()->forward(input);
    // _post_forward: no outputs are named without find_unused_parameters.
    reducer_->prepare_for_backward({});
    return output;
  }

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::vector<at::Tensor> buffers_;
  std::unique_ptr<c10d::Reducer> reducer_;
};

}  // namespace

DdpVariant::DdpVariant(std::shared_ptr<BenchModel> model)
    : model_(std::move(model)), optimizer_(model_->parameters(), kLearningRate) {}

void DdpVariant::step(const BenchBatch& batch) {
  drop_gradients();
  const at::Tensor logits = forward(batch.input);
  const at::Tensor loss = torch::nn::functional::cross_entropy(logits, batch.target);
  loss.backward();
  optimizer_.step();
}

void DdpVariant::drop_gradients() {
  // Not Optimizer::zero_grad(): it detaches gradients first, which c10d's views refuse.
  for (at::Tensor& parameter : model_->parameters()) {
    parameter.mutable_grad().reset();
  }
}

std::unique_ptr<DdpVariant> make_bare_variant(std::shared_ptr<BenchModel> model) {
  return std::make_unique<BareVariant>(std::move(model));
}

std::unique_ptr<DdpVariant> make_lockstep_variant(const std::shared_ptr<BenchModel>& model,
                                                  Group group) {
  return std::make_unique<LockstepVariant>(model, std::move(group));
}

std::unique_ptr<DdpVariant> make_c10d_variant(const std::shared_ptr<BenchModel>& model,
                                              c10::intrusive_ptr<c10d::Backend> gloo) {
  return std::make_unique<C10dVariant>(model, std::move(gloo));
}

}  // namespace lockstep

#include <map>
#include <set>
#include <utility>

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/ddp/local_sgd.h>

#include "ddp/hook_memory.h"

namespace lockstep {
namespace {

class LocalSgdHook : public CommHook {
 public:
  explicit LocalSgdHook(LocalSgdOptions options) : options_(std::move(options)) {}

  Work start(const GradBucket& bucket, Group& group) override {
    steps_.enter(group);
    const bool is_local = steps_.count() >= options_.start_step;
    if (bucket.is_last) {
      steps_.advance();
    }
    if (is_local && !options_.subgroup) {
      return {};
    }
    return (is_local ? *options_.subgroup : group)
        .all_reduce_async(bucket.buffer, {.op = ReduceOp::Average});
  }

 private:
  LocalSgdOptions options_;
  ddp::HookSteps steps_;
};

void check_parameter(const at::Tensor& parameter, size_t i, at::Device device) {
  if (!parameter.defined()) {
    throw UsageError("averager: parameter {} is an undefined tensor", i);
  }
  if (parameter.layout() != at::kStrided || !parameter.is_floating_point()) {
    throw UsageError(
        "averager: parameter {} is {} on {}, {}; only dense floating tensors can be averaged", i,
        c10::toString(parameter.scalar_type()), parameter.device().str(),
        parameter.layout() == at::kStrided ? "dense" : "sparse");
  }
  if (parameter.device() != device) {
    throw UsageError(
        "averager: parameter {} is on {} and parameter 0 on {}; the parameters must be on one "
        "device",
        i, parameter.device().str(), device.str());
  }
}

}  // namespace

class PeriodicModelAverager::Impl {
 public:
  Impl(Group group, ModelAveragerOptions options) : group_(std::move(group)), options_(options) {
    if (options_.period < 1) {
      throw UsageError("averager: period = {} must be at least 1", options_.period);
    }
    if (options_.warmup_steps < 0) {
      throw UsageError("averager: warmup_steps = {} must not be negative", options_.warmup_steps);
    }
    if (options_.period == 1) {
      log::warn("ddp",
                "averager: period = 1 sends the model in every step; averaging gradients costs no "
                "more and keeps the models equal");
    }
  }

  bool average(const std::vector<at::Tensor>& parameters) {
    const ByType by_type = sort(parameters);
    steps_.enter(group_);
    const int64_t past_warmup = steps_.count() - options_.warmup_steps;
    const bool is_due = past_warmup >= 0 && past_warmup % options_.period == 0;
    if (is_due && group_.size() > 1) {
      const c10::NoGradGuard no_grad;
      exchange(by_type);
    }
    steps_.advance();
    return is_due;
  }

  void rebind(Group group) { group_ = std::move(group); }

 private:
  using ByType = std::map<at::ScalarType, std::vector<at::Tensor>>;

  static ByType sort(const std::vector<at::Tensor>& parameters) {
    ByType by_type;
    std::set<void*> seen;
    for (size_t i = 0; i < parameters.size(); ++i) {
      check_parameter(parameters[i], i,
                      parameters[0].defined() ? parameters[0].device() : at::Device(at::kCPU));
      if (parameters[i].requires_grad() &&
          seen.insert(parameters[i].unsafeGetTensorImpl()).second) {
        by_type[parameters[i].scalar_type()].push_back(parameters[i]);
      }
    }
    if (by_type.empty()) {
      throw UsageError("averager: none of {} parameters requires a gradient; is everything frozen?",
                       parameters.size());
    }
    return by_type;
  }

  // Nothing is written before everything has arrived.
  void exchange(const ByType& by_type) {
    std::vector<std::pair<at::Tensor, at::Tensor>> parts;  // (parameter, its place)
    size_t index = 0;
    for (const auto& [type, tensors] : by_type) {
      int64_t numel = 0;
      for (const at::Tensor& tensor : tensors) {
        numel += tensor.numel();
      }
      if (numel == 0) {
        continue;
      }
      const at::Tensor flat = memory_.piece(index++, numel, tensors[0].options(), group_);
      int64_t offset = 0;
      for (const at::Tensor& tensor : tensors) {
        parts.emplace_back(tensor, flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
        parts.back().second.copy_(tensor);
        offset += tensor.numel();
      }
      group_.all_reduce(flat, {.op = ReduceOp::Average});
    }
    for (const auto& [parameter, average] : parts) {
      parameter.copy_(average);
    }
  }

  Group group_;
  const ModelAveragerOptions options_;
  ddp::HookSteps steps_;
  ddp::HookMemory memory_;
};

PeriodicModelAverager::PeriodicModelAverager(Group group, ModelAveragerOptions options)
    : impl_(std::make_unique<Impl>(std::move(group), options)) {}
PeriodicModelAverager::~PeriodicModelAverager() = default;
PeriodicModelAverager::PeriodicModelAverager(PeriodicModelAverager&&) noexcept = default;
PeriodicModelAverager& PeriodicModelAverager::operator=(PeriodicModelAverager&&) noexcept = default;

bool PeriodicModelAverager::average(const torch::nn::Module& module) {
  return impl_->average(module.parameters());
}

bool PeriodicModelAverager::average(const std::vector<at::Tensor>& parameters) {
  return impl_->average(parameters);
}

void PeriodicModelAverager::rebind(Group group) {
  impl_->rebind(std::move(group));
}

std::shared_ptr<CommHook> local_sgd(LocalSgdOptions options) {
  if (options.start_step < 0) {
    throw UsageError("local_sgd: start_step = {} must not be negative", options.start_step);
  }
  return std::make_shared<LocalSgdHook>(std::move(options));
}

}  // namespace lockstep

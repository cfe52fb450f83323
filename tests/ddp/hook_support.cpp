#include "ddp/hook_support.h"

#include <algorithm>

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "comm/backends/backend.h"

namespace lockstep {
namespace {

constexpr int64_t kGapElements = 3;

class CountingBackend : public comm::Backend {
 public:
  CountingBackend(Group group, std::shared_ptr<SentLog> log)
      : group_(std::move(group)), log_(std::move(log)) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::string name() const override { return "counting"; }
  std::chrono::milliseconds timeout() const override { return group_.timeout(); }
  std::optional<Store> store() const override { return std::nullopt; }

  std::shared_ptr<comm::WorkState> start(comm::Call call) override {
    LOCKSTEP_CHECK(call.operation == comm::Operation::AllReduce, "hooks only reduce");
    if (call.input.scalar_type() != at::kLong) {  // steps, not gradients
      log_->all_reduces.push_back({call.input.scalar_type(), call.input.numel(), call.reduce});
    }
    group_.all_reduce(call.input, {.op = call.reduce});
    return nullptr;
  }

  at::Tensor allocate(int64_t bytes, const comm::Call& /*call*/) override {
    log_->allocations.push_back(bytes);
    return group_.allocate(bytes);
  }

 private:
  Group group_;
  const std::shared_ptr<SentLog> log_;
};

size_t number_of(const Parameters& parameters, const std::string& name) {
  const auto found = std::find(parameters.names.begin(), parameters.names.end(), name);
  return static_cast<size_t>(found - parameters.names.begin());
}

}  // namespace

Parameters make_parameters(const std::vector<std::vector<int64_t>>& sizes, at::ScalarType type) {
  Parameters parameters;
  for (size_t i = 0; i < sizes.size(); ++i) {
    parameters.names.push_back("layer" + std::to_string(i));
    parameters.tensors.push_back(at::zeros(sizes[i], type));
  }
  return parameters;
}

std::vector<GradBucket> make_buckets(const Parameters& parameters, const Split& split,
                                     Group& group) {
  std::vector<GradBucket> buckets;
  for (const std::vector<size_t>& members : split) {
    GradBucket bucket{.index = buckets.size(), .is_last = buckets.size() + 1 == split.size()};
    int64_t numel = 0;
    for (const size_t i : members) {
      numel += parameters.tensors[i].numel() + kGapElements;
    }
    const at::ScalarType type = parameters.tensors[members.front()].scalar_type();
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(type));
    bucket.buffer = group.allocate(numel * element_bytes).view(type);
    int64_t offset = 0;
    for (const size_t i : members) {
      const at::Tensor& parameter = parameters.tensors[i];
      bucket.gradients.push_back(
          bucket.buffer.as_strided(parameter.sizes(), parameter.strides(), offset));
      bucket.parameters.push_back(parameter);
      bucket.names.push_back(parameters.names[i]);
      offset += parameter.numel() + kGapElements;
    }
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

at::Tensor gradient_at(at::IntArrayRef sizes, const Place& place) {
  const at::Tensor counts = at::arange(c10::multiply_integers(sizes), at::kDouble).view(sizes);
  const double factor = 0.37 * static_cast<double>(place.parameter + 1) * (1 + 0.05 * place.rank);
  // The square keeps it from being a matrix of rank 2.
  const at::Tensor phase = counts * factor + 0.013 * counts * counts;
  return (phase + 1.3 * place.step + 0.7 * place.rank).sin();
}

at::Tensor average_at(at::IntArrayRef sizes, int size, const Place& place) {
  at::Tensor sum = at::zeros(sizes, at::kDouble);
  for (int rank = 0; rank < size; ++rank) {
    sum += gradient_at(sizes, {rank, place.step, place.parameter});
  }
  return sum / size;
}

void fill(const std::vector<GradBucket>& buckets, const Parameters& parameters, int step,
          int rank) {
  for (const GradBucket& bucket : buckets) {
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      const at::Tensor& gradient = bucket.gradients[i];
      gradient.copy_(
          gradient_at(gradient.sizes(), {rank, step, number_of(parameters, bucket.names[i])}));
    }
  }
}

void run_hook(CommHook& hook, const std::vector<GradBucket>& buckets, Group& group) {
  std::vector<Work> works;
  for (const GradBucket& bucket : buckets) {
    works.push_back(hook.start(bucket, group));
  }
  for (size_t i = 0; i < buckets.size(); ++i) {
    works[i].wait();
    hook.finish(buckets[i], group);
  }
}

std::vector<at::Tensor> results(const std::vector<GradBucket>& buckets,
                                const Parameters& parameters) {
  std::vector<at::Tensor> found(parameters.names.size());
  for (const GradBucket& bucket : buckets) {
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      found[number_of(parameters, bucket.names[i])] = bucket.gradients[i].clone();
    }
  }
  return found;
}

bool same_on_all_ranks(Group& group, const std::vector<GradBucket>& buckets) {
  bool is_same = true;
  for (const GradBucket& bucket : buckets) {
    is_same = same_on_all_ranks(group, bucket.buffer) && is_same;
  }
  return is_same;
}

bool gaps_are_zero(const std::vector<GradBucket>& buckets) {
  for (const GradBucket& bucket : buckets) {
    const at::Tensor rest = bucket.buffer.clone();
    for (const at::Tensor& gradient : bucket.gradients) {
      rest.narrow(0, gradient.storage_offset() - bucket.buffer.storage_offset(), gradient.numel())
          .zero_();
    }
    if (rest.count_nonzero().item<int64_t>() != 0) {
      return false;
    }
  }
  return true;
}

Group counting_group(Group group, std::shared_ptr<SentLog> log) {
  return Group(std::make_shared<CountingBackend>(std::move(group), std::move(log)));
}

}  // namespace lockstep

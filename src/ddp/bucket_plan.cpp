#include "ddp/bucket_plan.h"

#include <ATen/ops/zeros.h>

namespace lockstep {
namespace {

int64_t numel_of(const Bucket& bucket) {
  return bucket.slots.empty() ? 0 : bucket.slots.back().offset + bucket.slots.back().numel;
}

}  // namespace

std::vector<Bucket> plan_buckets(const std::vector<at::Tensor>& parameters, int64_t bucket_bytes) {
  std::vector<Bucket> buckets;
  at::ScalarType type = at::ScalarType::Undefined;
  const auto close_last = [&] {
    if (!buckets.empty()) {
      buckets.back().flat = at::zeros({numel_of(buckets.back())}, type);
    }
  };
  for (size_t i = parameters.size(); i-- > 0;) {
    const at::Tensor& parameter = parameters[i];
    const int64_t filled =
        buckets.empty() ? 0
                        : numel_of(buckets.back()) * static_cast<int64_t>(c10::elementSize(type));
    const bool fits = filled + static_cast<int64_t>(parameter.nbytes()) <= bucket_bytes;
    if (buckets.empty() || parameter.scalar_type() != type || !fits) {
      close_last();
      buckets.emplace_back();
      type = parameter.scalar_type();
    }
    Bucket& bucket = buckets.back();
    bucket.slots.push_back({i, numel_of(bucket), parameter.numel()});
  }
  close_last();
  return buckets;
}

}  // namespace lockstep

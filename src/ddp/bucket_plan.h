#pragma once

// Decides which gradients travel together.

#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>

namespace lockstep::ddp {

// The plan needs to know this of a gradient.
struct GradientSize {
  int64_t bytes = 0;
  c10::ScalarType type = c10::ScalarType::Float;
};

struct BucketLimits {
  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;
  int64_t alone_bytes = INT64_MAX;  // gradients of at least so many have a bucket of their own
};

// `order` lists gradients (indices into `sizes`) as they become ready. Cuts them into buckets of
// one type, each at most the limit but of at least one gradient; buckets in the order in which they
// become full. A pure function of its arguments: all ranks get the same.
std::vector<std::vector<size_t>> plan_buckets(const std::vector<GradientSize>& sizes,
                                              const std::vector<size_t>& order,
                                              const BucketLimits& limits);

}  // namespace lockstep::ddp

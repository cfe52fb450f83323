#pragma once

// Which gradients travel together.

#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

// Where a parameter's gradient lies in its bucket.
struct BucketSlot {
  size_t parameter = 0;  // index into the list of parameters
  int64_t offset = 0;    // in elements
  int64_t numel = 0;
};

struct Bucket {
  std::vector<BucketSlot> slots;
  at::Tensor flat;  // all gradients of the bucket, one behind the other
};

// Parameters in reverse order (backward reaches the last layer first), cut into buckets of one type
// and at most `bucket_bytes`, but at least one parameter each. A pure function of its arguments:
// all ranks get the same.
std::vector<Bucket> plan_buckets(const std::vector<at::Tensor>& parameters, int64_t bucket_bytes);

}  // namespace lockstep

#pragma once

// Small changes that leave a picture what it is, so that no two epochs show a model the same
// pixels.

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep {

struct JitterOptions {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t max_shift = 1;  // pixels, >= 0, each way
};

// A copy of `pictures` (float [n, channels, height, width]) in which each may be mirrored left to
// right and is shifted a little; border pixels fill the gap. Picture i changes as (seed, epoch, i)
// say and nothing else: how pictures are dealt to ranks has no say in it. Throws UsageError for
// another kind of tensor.
at::Tensor jitter_pictures(const at::Tensor& pictures, const JitterOptions& options);

}  // namespace lockstep

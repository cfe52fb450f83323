#pragma once

// Small changes that leave a picture what it is, so that no two epochs show a model the same
// pixels.

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

// A copy of `pictures` (float [n, channels, height, width]) in which each may be mirrored left to
// right and is shifted by at most `max_shift` pixels each way; border pixels fill the gap. Picture
// i changes as seeds[i] says and nothing else: how pictures are dealt to ranks has no say in it.
// Throws UsageError for another kind of tensor or number of seeds.
at::Tensor jitter_pictures(const at::Tensor& pictures, std::span<const uint64_t> seeds,
                           int64_t max_shift = 1);

}  // namespace lockstep::data

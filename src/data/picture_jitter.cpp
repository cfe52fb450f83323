// Shapes: N pictures, C channels, H height, W width.
#include "data/picture_jitter.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/empty_like.h>

#include <lockstep/base/error.h>

#include "base/dice.h"

namespace lockstep::data {
namespace {

// Where each row (or column) of the result comes from: shifted, kept inside, perhaps mirrored.
std::vector<int64_t> sources(int64_t size, int64_t shift, bool mirrored) {
  std::vector<int64_t> from(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    const int64_t inside = std::clamp<int64_t>(i - shift, 0, size - 1);
    from[static_cast<size_t>(i)] = mirrored ? size - 1 - inside : inside;
  }
  return from;
}

int64_t choose_shift(base::Dice& dice, int64_t max_shift) {
  return static_cast<int64_t>(dice.below(static_cast<size_t>(2 * max_shift + 1))) - max_shift;
}

}  // namespace

at::Tensor jitter_pictures(const at::Tensor& pictures, std::span<const uint64_t> seeds,
                           int64_t max_shift) {
  if (!pictures.defined() || pictures.dim() != 4 || pictures.scalar_type() != at::kFloat) {
    throw UsageError("jitter: pictures must be float [n, channels, height, width]");
  }
  if (static_cast<int64_t>(seeds.size()) != pictures.size(0)) {
    throw UsageError("jitter: {} seeds for {} pictures", seeds.size(), pictures.size(0));
  }
  if (max_shift < 0) {
    throw UsageError("jitter: max_shift is {}, it must be at least 0", max_shift);
  }
  const at::Tensor input_NCHW = pictures.contiguous();
  const at::Tensor output_NCHW = at::empty_like(input_NCHW);
  const int64_t channels = pictures.size(1), height = pictures.size(2), width = pictures.size(3);
  const float* input = input_NCHW.const_data_ptr<float>();
  float* output = output_NCHW.mutable_data_ptr<float>();
  for (const uint64_t seed : seeds) {
    base::Dice dice(seed, 0);
    const bool mirrored = dice.coin();
    const auto rows = sources(height, choose_shift(dice, max_shift), false);
    const auto columns = sources(width, choose_shift(dice, max_shift), mirrored);
    for (int64_t c = 0; c < channels; ++c) {
      for (const int64_t row : rows) {
        for (const int64_t column : columns) {
          *output++ = input[row * width + column];
        }
      }
      input += height * width;
    }
  }
  return output_NCHW;
}

}  // namespace lockstep::data

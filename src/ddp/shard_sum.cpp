#include "ddp/shard_sum.h"

#include <bit>

#include <ATen/ops/empty_like.h>

namespace lockstep::ddp {

at::Tensor ShardSum::partial(size_t parameter, const at::Tensor& bottom, size_t depth) {
  if (depth == 0) {
    return bottom;
  }
  std::vector<at::Tensor>& above = above_[parameter];
  while (above.size() < depth) {
    above.push_back(at::empty_like(bottom));
  }
  return above[depth - 1];
}

void ShardSum::add(size_t parameter, const at::Tensor& bottom, int shard,
                   const at::Tensor& gradient) {
  const auto before = static_cast<unsigned>(shard);
  auto depth = static_cast<size_t>(std::popcount(before));  // partial sums so far
  if (before % 2 == 0) {
    at::Tensor top = partial(parameter, bottom, depth);
    if (gradient.defined()) {
      top.copy_(gradient);
    } else {
      top.zero_();
    }
    return;
  }
  at::Tensor top = partial(parameter, bottom, --depth);
  if (gradient.defined()) {
    top.add_(gradient);
  } else {
    top.add_(0);  // not nothing: it makes a negative zero positive, as a rank's zeros do
  }
  for (int merged = 1; merged < std::countr_one(before); ++merged) {
    at::Tensor below = partial(parameter, bottom, --depth);
    below.add_(top);
    top = below;
  }
}

}  // namespace lockstep::ddp

#include "checkpoint/pinned_pool.h"

#include <algorithm>
#include <limits>

#include "device/memory.h"

namespace lockstep::checkpoint {

at::Tensor PinnedPool::take_used() {
  if (idle_.empty()) {
    return {};
  }
  at::Tensor piece = std::move(idle_.back());
  idle_.pop_back();
  return piece;
}

at::Tensor PinnedPool::take_fresh(device::Copies& copies) {
  if (num_pinned_ > 0 && (num_pinned_ + 1) * kBytes > limit_bytes_) {
    return {};
  }
  at::Tensor piece = device::pinned_memory(copies, "checkpoint", kBytes);
  ++num_pinned_;
  return piece;
}

uint64_t pinned_limit(int num_ranks) {
  const auto available = device::available_on_host();
  return available ? *available / 2 / static_cast<uint64_t>(std::max(num_ranks, 1))
                   : std::numeric_limits<uint64_t>::max();
}

}  // namespace lockstep::checkpoint

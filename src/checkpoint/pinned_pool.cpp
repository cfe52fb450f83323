#include "checkpoint/pinned_pool.h"

#include <algorithm>
#include <limits>

#include "base/process/memory_limit.h"
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

HostMemory host_memory() {
  return {.available = device::available_on_host(),
          .left_in_cgroups = base::memory_left_in_cgroups()};
}

uint64_t pinned_limit(const HostMemory& memory, int num_ranks) {
  constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  const uint64_t left =
      std::min(memory.available.value_or(kNone), memory.left_in_cgroups.value_or(kNone));
  return left == kNone ? kNone : left / 2 / static_cast<uint64_t>(std::max(num_ranks, 1));
}

}  // namespace lockstep::checkpoint

#pragma once

// Pinned memory for copies of a device's tensors, kept from one save to the next: to pin memory
// takes longer than to copy into it.

#include <cstdint>
#include <optional>
#include <vector>

#include "device/copies.h"

namespace lockstep::checkpoint {

// All copies into it go through one lane, one after the other. So a piece may be given back, and be
// taken again, while a copy into it is still under way.
// Threads: not thread-safe.
class PinnedPool {
 public:
  static constexpr uint64_t kBytes = 4u << 20;  // of each piece

  // Pins at most `limit_bytes`, and one piece in any case.
  explicit PinnedPool(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // A piece that was pinned before, as a uint8 tensor; an undefined one if none is free.
  at::Tensor take_used();

  // A piece that is pinned now; an undefined one beyond the limit. Throws UsageError if the host
  // has no memory for it.
  at::Tensor take_fresh(device::Copies& copies);

  void give_back(at::Tensor piece) { idle_.push_back(std::move(piece)); }

  uint64_t num_pinned() const { return num_pinned_; }

 private:
  const uint64_t limit_bytes_;
  uint64_t num_pinned_ = 0;
  std::vector<at::Tensor> idle_;
};

struct HostMemory {
  std::optional<uint64_t> available;        // of the whole host; nothing: unknown
  std::optional<uint64_t> left_in_cgroups;  // until this process is killed; nothing: no limit
};
HostMemory host_memory();  // now

// Half of what may be taken, dealt out to `num_ranks`: a job of Slurm's or a pod may take less than
// the host has.
uint64_t pinned_limit(const HostMemory& memory, int num_ranks);

}  // namespace lockstep::checkpoint

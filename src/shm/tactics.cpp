#include "shm/tactics.h"

#include "shm/arena.h"

namespace lockstep::shm {
namespace {

constexpr size_t kKiB = 1024;

}  // namespace

Tactics Tactics::for_ranks(int num_ranks, int num_cores) {
  if (num_ranks <= num_cores) {
    return {.has_own_cores = true,
            .flat_bytes = kKiB,
            .slice_bytes = 1024 * kKiB,
            .small_bytes = 256 * kKiB};
  }
  // Two ranks have little to wait for in the pipeline; more pay for each of its meetings.
  return {.alone_bytes = 64 * kKiB, .small_bytes = num_ranks > 2 ? kSlotBytes : 256 * kKiB};
}

}  // namespace lockstep::shm

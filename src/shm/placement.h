#pragma once

// Where the ranks of a team run, when they have to share cores. The kernel evens out processes that
// compute, but hardly ones that yield to each other many times per millisecond: it takes them for
// "cache hot" and leaves them where they are, at times for seconds. Three ranks on one core and one
// on the other make an operation half as long again. So before a large operation the ranks that are
// too many on a core move.

#include <optional>
#include <span>

namespace lockstep::shm {

// The core on which `rank` would run with less company, if `cores_of_ranks` is where the ranks run
// now and it is this rank's turn to move: every rank that asks with the same arguments gets an
// answer that fits those of the others. `usable` are the cores to share.
std::optional<int> better_core(std::span<const int> cores_of_ranks, int rank,
                               std::span<const int> usable);

}  // namespace lockstep::shm

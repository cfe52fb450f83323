#pragma once

// What the machine itself can do at this moment: the yardsticks beside the figures of a benchmark.

#include <cstddef>
#include <optional>

namespace lockstep {

// From now on the calling thread stays on a core of its own, as an MPI's ranks do: rank r on the
// r-th that this process may use. Where ranks outnumber cores, a CPU quota counted (then an MPI's
// are not bound either), it returns false and does nothing.
bool take_own_core(int rank, int num_ranks);

// A cache line's way from one core to another and back, in nanoseconds: the median of many short
// runs between two pinned threads. Nothing where this process has one core only. On virtual
// machines it changes by a factor of four from second to second, and small collectives with it.
std::optional<double> core_roundtrip_ns();

// One pass that reads and writes all of [data, data + bytes): what memory costs a rank at this
// moment. It is no bound: a collective that finds more of its memory in a cache is faster.
void add_one_to_all(void* data, size_t bytes);

}  // namespace lockstep

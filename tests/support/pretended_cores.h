#pragma once

// Cores that this host need not have.

#include <vector>

namespace lockstep::test {

// From now on every thread of this process seems to be bound to them. Whoever calls this gets a
// sched_getaffinity() in place of libc's; where threads really run is not changed.
void pretend_cores(std::vector<int> cores);

}  // namespace lockstep::test

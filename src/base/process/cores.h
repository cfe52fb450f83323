#pragma once

// On which cores the calling thread runs, and may run.

#include <bitset>
#include <vector>

namespace lockstep::base {

// Cores as plain bits, which processes can hand each other; Linux numbers no more than these.
using CoreBits = std::bitset<8192>;

// The core that it runs on; -1 if the system does not say.
int current_core();

// The cores that it may use, in order; none if the system does not say.
std::vector<int> usable_cores();
int num_usable_cores();  // at least 1, and no more than its CPU quota is worth
CoreBits usable_core_bits();

// It runs nowhere but on `core` (>= 0) from now on. Returns false if it may not run there: nothing
// has changed.
bool stay_on_core(int core);

// It continues there, for as long as the kernel leaves it. What cores it may use is not changed.
void move_to_core(int core);

}  // namespace lockstep::base

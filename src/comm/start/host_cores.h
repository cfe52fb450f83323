#pragma once

// The cores of a host, and how many ranks of a group share them.

#include <lockstep/comm/group.h>

namespace lockstep::comm {

struct HostCores {
  // The cores that the group's ranks on this machine may use together, within their CPU quotas.
  int num_cores = 1;
  int num_ranks = 1;  // of the group, on this machine
};

// Collective. Returns the cores of every rank's machine, in the order of the ranks; the answer is
// the same on each. A machine is one boot of a kernel: emulated nodes share its cores, and ranks
// that are bound to cores of their own have them together.
std::vector<HostCores> host_cores(Group& group);

}  // namespace lockstep::comm

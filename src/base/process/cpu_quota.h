#pragma once

// How much CPU time the control groups of this process grant: a container may see every core of its
// host and get the time of two.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace lockstep::base {

struct CpuQuota {
  int32_t num_cores = 0;  // whole ones, at least 1; 0: there is no limit
  uint64_t group = 0;     // who has the same one shares the limit
};

// The quota of this process: the lowest of its group and of all groups above it (cgroup version 1
// or 2).
CpuQuota cpu_quota(const std::string& root = "");

// The same as it is written, in cores; nothing if there is no limit.
std::optional<double> cgroup_cpu_limit(const std::string& root);

// How many of `num_cores` processes with these quotas can keep busy together; at least 1.
int cores_within(int num_cores, std::span<const CpuQuota> quotas);

}  // namespace lockstep::base

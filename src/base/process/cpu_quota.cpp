#include "base/process/cpu_quota.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <sys/stat.h>

#include "base/process/cgroup.h"

namespace lockstep::base {
namespace {

struct Limit {
  double cores = 0;
  std::string folder;  // of the group that has it
};

// The limit of one group; 0 if it has none.
double limit_of(const std::string& folder, bool is_v2) {
  double quota = 0, period = 0;
  if (is_v2) {  // "max 100000": nothing is read
    std::sscanf(cgroup_text(folder + "/cpu.max").c_str(), "%lf %lf", &quota, &period);
  } else {
    std::sscanf(cgroup_text(folder + "/cpu.cfs_quota_us").c_str(), "%lf", &quota);
    std::sscanf(cgroup_text(folder + "/cpu.cfs_period_us").c_str(), "%lf", &period);
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

std::optional<Limit> lowest_limit(const std::string& root) {
  std::optional<Limit> lowest;
  for (const CgroupFolder& group : cgroup_folders("cpu", root)) {
    const double cores = limit_of(group.path, group.is_v2);
    if (cores > 0 && (!lowest || cores < lowest->cores)) {
      lowest = {.cores = cores, .folder = group.path};
    }
  }
  return lowest;
}

}  // namespace

std::optional<double> cgroup_cpu_limit(const std::string& root) {
  const auto lowest = lowest_limit(root);
  return lowest ? std::optional(lowest->cores) : std::nullopt;
}

CpuQuota cpu_quota(const std::string& root) {
  const auto lowest = lowest_limit(root);
  if (!lowest) {
    return {};
  }
  struct stat info {};
  ::stat(lowest->folder.c_str(), &info);
  // A part of a core is none: who counts on it is throttled in the middle of an operation.
  const double whole = std::clamp(std::floor(lowest->cores), 1.0, 1e6);
  return {.num_cores = static_cast<int32_t>(whole), .group = info.st_ino};
}

int cores_within(int num_cores, std::span<const CpuQuota> quotas) {
  std::map<uint64_t, int64_t> groups;
  for (const CpuQuota& quota : quotas) {
    if (quota.num_cores == 0) {
      return std::max(1, num_cores);
    }
    groups[quota.group] = std::max<int64_t>(groups[quota.group], quota.num_cores);
  }
  int64_t granted = quotas.empty() ? num_cores : 0;
  for (const auto& [group, cores] : groups) {
    granted += cores;
  }
  return static_cast<int>(std::clamp<int64_t>(granted, 1, std::max(1, num_cores)));
}

}  // namespace lockstep::base

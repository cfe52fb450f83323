#include "base/process/cpu_quota.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <sstream>
#include <sys/stat.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep::base {
namespace {

std::string text_of(const std::string& path) {
  try {
    return read_file(path);
  } catch (const IoError&) {
    return "";
  }
}

struct Limit {
  double cores = 0;
  std::string folder;  // of the group that has it
};

// The limit of one group; 0 if it has none.
double limit_of(const std::string& folder, bool is_v2) {
  double quota = 0, period = 0;
  if (is_v2) {  // "max 100000": nothing is read
    std::sscanf(text_of(folder + "/cpu.max").c_str(), "%lf %lf", &quota, &period);
  } else {
    std::sscanf(text_of(folder + "/cpu.cfs_quota_us").c_str(), "%lf", &quota);
    std::sscanf(text_of(folder + "/cpu.cfs_period_us").c_str(), "%lf", &period);
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

std::optional<Limit> lowest_limit(const std::string& root) {
  std::optional<Limit> lowest;
  std::istringstream lines(text_of(root + "/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_v2 = controllers == ",,";
    if (!is_v2 && controllers.find(",cpu,") == std::string::npos) {
      continue;
    }
    // The limit of any group above counts too; inside a container the path may not exist: then the
    // root.
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      const std::string folder = root + (is_v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu") + path;
      const double cores = limit_of(folder, is_v2);
      if (cores > 0 && (!lowest || cores < lowest->cores)) {
        lowest = {.cores = cores, .folder = folder};
      }
      if (path.find('/') == std::string::npos) {
        break;
      }
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

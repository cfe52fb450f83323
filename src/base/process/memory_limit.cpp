#include "base/process/memory_limit.h"

#include <algorithm>
#include <sstream>

#include "base/env.h"
#include "base/process/cgroup.h"

namespace lockstep::base {
namespace {

// "max", or no such file: nothing.
std::optional<uint64_t> number_in(const std::string& path) {
  std::string text = cgroup_text(path);
  text.erase(std::min(text.find('\n'), text.size()));
  const auto number = parse_integer(text, 0, INT64_MAX);
  return number ? std::optional(static_cast<uint64_t>(*number)) : std::nullopt;
}

// Pages of files that were not used lately: the kernel drops them rather than kill.
uint64_t droppable(const CgroupFolder& group) {
  const std::string wanted = group.is_v2 ? "inactive_file" : "total_inactive_file";
  std::istringstream entries(cgroup_text(group.path + "/memory.stat"));
  std::string name;
  for (uint64_t bytes = 0; entries >> name >> bytes;) {
    if (name == wanted) {
      return bytes;
    }
  }
  return 0;
}

}  // namespace

std::optional<uint64_t> memory_left_in_cgroups(const std::string& root) {
  std::optional<uint64_t> least;
  for (const CgroupFolder& group : cgroup_folders("memory", root)) {
    const auto limit =
        number_in(group.path + (group.is_v2 ? "/memory.max" : "/memory.limit_in_bytes"));
    const auto used =
        number_in(group.path + (group.is_v2 ? "/memory.current" : "/memory.usage_in_bytes"));
    if (!limit || !used) {
      continue;
    }
    const uint64_t kept = *used - std::min(*used, droppable(group));
    const uint64_t left = *limit - std::min(*limit, kept);
    least = std::min(least.value_or(left), left);
  }
  return least;
}

}  // namespace lockstep::base

#pragma once

// The control groups that this process is in (cgroup version 1 or 2).

#include <string>
#include <vector>

namespace lockstep::base {

struct CgroupFolder {
  std::string path;  // where the group's files are; may not exist inside a container
  bool is_v2 = false;
};

// Those of its groups that `controller` ("cpu", "memory") may limit: its own, and each one above,
// whose limits count too. `root` stands before /proc and /sys.
std::vector<CgroupFolder> cgroup_folders(const std::string& controller, const std::string& root);

// A file of a group; "" if it cannot be read.
std::string cgroup_text(const std::string& path);

}  // namespace lockstep::base

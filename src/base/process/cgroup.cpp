#include "base/process/cgroup.h"

#include <sstream>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep::base {

std::string cgroup_text(const std::string& path) {
  try {
    return read_file(path);
  } catch (const IoError&) {
    return "";
  }
}

std::vector<CgroupFolder> cgroup_folders(const std::string& controller, const std::string& root) {
  std::vector<CgroupFolder> folders;
  std::istringstream lines(cgroup_text(root + "/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_v2 = controllers == ",,";
    if (!is_v2 && controllers.find("," + controller + ",") == std::string::npos) {
      continue;
    }
    const std::string top = root + "/sys/fs/cgroup" + (is_v2 ? "" : "/" + controller);
    // Inside a container the path may not exist: then the limit is that of the root.
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      folders.push_back({.path = top + path, .is_v2 = is_v2});
      if (path.find('/') == std::string::npos) {
        break;
      }
    }
  }
  return folders;
}

}  // namespace lockstep::base

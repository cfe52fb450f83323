#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "image/container.h"
#include "image/gpu_driver.h"

namespace lockstep::image {

namespace {

constexpr const char* kUsualFolders =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
constexpr const char* kJobVariables[] = {
    "RANK",       "LOCAL_RANK",       "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK",
    "ROLE_RANK",  "GROUP_WORLD_SIZE", "ROLE_NAME",  "ROLE_WORLD_SIZE",  "MASTER_ADDR",
    "MASTER_PORT"};

using Variables = std::map<std::string, std::string>;

Variables parse_entries(const std::vector<std::string>& entries) {
  Variables variables;
  for (const std::string& entry : entries) {
    const size_t equals = entry.find('=', 1);
    if (equals != std::string::npos) {
      variables.try_emplace(entry.substr(0, equals), entry.substr(equals + 1));
    }
  }
  return variables;
}

// ${NAME} becomes the host's value, or nothing; a dollar of any other kind stays.
std::string substituted(const std::string& value, const Variables& host) {
  std::string result;
  for (size_t at = 0; at < value.size();) {
    const size_t end = value.compare(at, 2, "${") == 0 ? value.find('}', at) : std::string::npos;
    if (end == std::string::npos) {
      result += value[at++];
      continue;
    }
    const auto found = host.find(value.substr(at + 2, end - at - 2));
    result += found == host.end() ? "" : found->second;
    at = end + 1;
  }
  return result;
}

std::string without_quotes(const std::string& value) {
  const bool quoted = value.size() >= 2 && value.front() == value.back() &&
                      (value.front() == '"' || value.front() == '\'');
  return quoted ? value.substr(1, value.size() - 2) : value;
}

// As pam_env reads it: NAME=value or export NAME=value; what is neither is passed over.
std::vector<std::pair<std::string, std::string>> read_environment(const std::string& root) {
  std::vector<std::pair<std::string, std::string>> entries;
  const std::string path = root + "/etc/environment";
  if (::access(path.c_str(), R_OK) != 0) {
    return entries;
  }
  std::istringstream text(base::read_file(path));
  for (std::string line; std::getline(text, line);) {
    line.erase(0, std::min(line.find_first_not_of(" \t"), line.size()));
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (line.starts_with("export ")) {
      line.erase(0, sizeof("export ") - 1);
    }
    const size_t equals = line.find('=');
    if (equals != std::string::npos && equals != 0 && line[0] != '#') {
      entries.emplace_back(line.substr(0, equals), without_quotes(line.substr(equals + 1)));
    }
  }
  return entries;
}

}  // namespace

bool is_job_variable(const std::string& name) {
  return name.starts_with("LOCKSTEP_") || name.starts_with("TORCHELASTIC_") ||
         name.starts_with("PET_") || name == "CUDA_VISIBLE_DEVICES" ||
         std::find(std::begin(kJobVariables), std::end(kJobVariables), name) !=
             std::end(kJobVariables);
}

bool names_host_files(const std::string& name) {
  return name == "PATH" || name == "LD_LIBRARY_PATH" || name == "LD_PRELOAD";
}

std::string image_search_path(const std::string& root) {
  std::string path = kUsualFolders;
  for (const auto& [name, value] : read_environment(root)) {
    if (name == "PATH") {
      path = value;
    }
  }
  return path;
}

std::vector<std::string> image_environment(const std::vector<std::string>& host,
                                           const std::string& root) {
  const Variables inherited = parse_entries(host);
  Variables merged = inherited;
  std::erase_if(merged, [](const auto& entry) { return names_host_files(entry.first); });
  merged["PATH"] = kUsualFolders;
  for (const auto& [name, value] : read_environment(root)) {
    if (!is_job_variable(name) || !inherited.contains(name)) {
      merged[name] = substituted(value, inherited);
    }
  }
  if (::access((root + kDriverFolder).c_str(), X_OK) == 0) {
    // First, since another libcuda (cuda-compat, a stub, one of the host that the image was made
    // on) does not fit this kernel's module. The folder has the driver's names alone: it hides
    // nothing else.
    std::string& path = merged["LD_LIBRARY_PATH"];
    path = kDriverFolder + (path.empty() ? "" : ":" + path);
  }
  std::vector<std::string> entries;
  entries.reserve(merged.size());
  for (const auto& [name, value] : merged) {
    entries.push_back(fmt::format("{}={}", name, value));
  }
  return entries;
}

}  // namespace lockstep::image

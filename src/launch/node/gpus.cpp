#include "launch/node/gpus.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <sstream>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/unique_fd.h"

namespace lockstep::launch {

namespace {

namespace fs = std::filesystem;

std::string line_value(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key)) {
      const size_t begin = line.find_first_not_of(" \t", key.size());
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  }
  return "";
}

struct Gpu {
  std::string uuid;
  int numa_node = -1;
};

// By PCI address, which is the name of each GPU's folder.
std::map<std::string, Gpu> find_gpus(const std::string& root) {
  std::map<std::string, Gpu> gpus;
  std::error_code error;
  for (const auto& folder : fs::directory_iterator(root + "/proc/driver/nvidia/gpus", error)) {
    const std::string address = folder.path().filename();
    Gpu gpu;
    try {
      gpu.uuid = line_value(base::read_file(folder.path() / "information"), "GPU UUID:");
      std::string node = base::read_file(root + "/sys/bus/pci/devices/" + address + "/numa_node");
      node.erase(std::min(node.find('\n'), node.size()));
      gpu.numa_node = static_cast<int>(base::parse_integer(node, -1, INT32_MAX).value_or(-1));
    } catch (const IoError&) {
      gpu.numa_node = -1;
    }
    gpus.emplace(address, gpu);
  }
  return gpus;
}

}  // namespace

std::vector<std::string> visible_entries(const std::string& visible) {
  std::vector<std::string> entries;
  std::istringstream items(visible);
  for (std::string item; std::getline(items, item, ',');) {
    std::erase_if(item, [](unsigned char c) { return std::isspace(c) != 0; });
    const bool is_device = base::parse_integer(item, 0, INT32_MAX) || item.starts_with("GPU-") ||
                           item.starts_with("MIG-");
    if (!is_device) {
      break;
    }
    entries.push_back(item);
  }
  return entries;
}

int count_gpus(const std::string& root, const std::optional<std::string>& visible) {
  if (visible) {
    return static_cast<int>(visible_entries(*visible).size());
  }
  int count = 0;
  std::error_code error;
  for (const auto& device : fs::directory_iterator(root + "/dev", error)) {
    const std::string name = device.path().filename();
    const std::string prefix = "nvidia";
    count +=
        name.starts_with(prefix) && base::parse_integer(name.substr(prefix.size()), 0, INT32_MAX);
  }
  return count;
}

std::vector<int> gpu_numa_nodes(const std::string& root,
                                const std::optional<std::string>& visible) {
  std::vector<Gpu> gpus;
  for (const auto& [address, gpu] : find_gpus(root)) {
    gpus.push_back(gpu);
  }
  std::vector<int> nodes;
  if (!visible) {
    std::transform(gpus.begin(), gpus.end(), std::back_inserter(nodes),
                   [](const Gpu& gpu) { return gpu.numa_node; });
    return nodes;
  }
  for (const std::string& entry : visible_entries(*visible)) {
    const auto index = base::parse_integer(entry, 0, static_cast<int64_t>(gpus.size()) - 1);
    const auto found =
        index ? gpus.begin() + *index : std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
          return !gpu.uuid.empty() && gpu.uuid.starts_with(entry);
        });
    nodes.push_back(found != gpus.end() ? found->numa_node : -1);
  }
  return nodes;
}

std::optional<std::string> visible_devices() {
  const char* value = std::getenv("CUDA_VISIBLE_DEVICES");
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

}  // namespace lockstep::launch

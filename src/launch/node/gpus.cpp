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
#include "base/process/gpu_files.h"
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

// As strtoul reads it: "1", " 1", "1x". A sign other than "+" names no device.
std::optional<int64_t> leading_number(const std::string& entry) {
  const size_t begin = entry.starts_with('+') ? 1 : 0;
  const size_t end = std::min(entry.find_first_not_of("0123456789", begin), entry.size());
  return base::parse_integer(entry.substr(begin, end - begin), 0, INT32_MAX);
}

// What CUDA takes the entry for, if it is of the kind that `prefix` names ("": a number).
std::optional<std::string> entry_of_kind(const std::string& entry, const std::string& prefix) {
  if (!prefix.empty()) {
    return entry.starts_with(prefix) ? std::optional(entry) : std::nullopt;
  }
  const auto number = leading_number(entry);
  return number ? std::optional(std::to_string(*number)) : std::nullopt;
}

// The names of one kind may be cut short, if they still name one GPU. Nothing: none, or several.
std::optional<std::string> full_uuid(const std::vector<Gpu>& gpus, const std::string& entry) {
  std::optional<std::string> found;
  for (const Gpu& gpu : gpus) {
    if (!gpu.uuid.empty() && gpu.uuid.starts_with(entry)) {
      if (found) {
        return std::nullopt;
      }
      found = gpu.uuid;
    }
  }
  return found;
}

std::vector<Gpu> gpus_in_order(const std::string& root) {
  std::vector<Gpu> gpus;
  for (const auto& [address, gpu] : find_gpus(root)) {
    gpus.push_back(gpu);
  }
  return gpus;
}

bool names_a_gpu(const std::string& entry, int num_gpus, const std::vector<Gpu>& gpus) {
  if (const auto number = base::parse_integer(entry, 0, INT32_MAX)) {
    return *number < num_gpus;
  }
  const bool are_known =
      std::any_of(gpus.begin(), gpus.end(), [](const Gpu& gpu) { return !gpu.uuid.empty(); });
  return !entry.starts_with("GPU-") || !are_known || full_uuid(gpus, entry);
}

}  // namespace

std::vector<std::string> visible_entries(const std::string& visible) {
  std::vector<std::string> entries;
  std::optional<std::string> prefix;
  std::istringstream items(visible);
  for (std::string item; std::getline(items, item, ',');) {
    std::erase_if(item, [](unsigned char c) { return std::isspace(c) != 0; });
    if (!prefix) {
      prefix = item.starts_with("GPU-") ? "GPU-" : item.starts_with("MIG-") ? "MIG-" : "";
    }
    const auto entry = entry_of_kind(item, *prefix);
    if (!entry) {
      break;
    }
    if (std::find(entries.begin(), entries.end(), *entry) != entries.end()) {
      return {};
    }
    entries.push_back(*entry);
  }
  return entries;
}

std::vector<std::string> visible_gpus(const std::string& root,
                                      const std::optional<std::string>& visible) {
  const int num_gpus = base::count_gpu_files(root);
  const bool is_other = num_gpus == 0 && base::has_gpu_without_file(root);
  if (!visible) {
    std::vector<std::string> names(is_other ? 1 : static_cast<size_t>(num_gpus));
    for (size_t i = 0; i < names.size(); ++i) {
      names[i] = std::to_string(i);
    }
    return names;
  }
  std::vector<std::string> names = visible_entries(*visible);
  if (num_gpus == 0) {
    return is_other ? names : std::vector<std::string>();
  }
  const std::vector<Gpu> gpus = gpus_in_order(root);
  names.erase(
      std::find_if(names.begin(), names.end(),
                   [&](const std::string& name) { return !names_a_gpu(name, num_gpus, gpus); }),
      names.end());
  return names;
}

std::vector<int> gpu_numa_nodes(const std::string& root,
                                const std::optional<std::string>& visible) {
  const std::vector<Gpu> gpus = gpus_in_order(root);
  std::vector<int> nodes;
  if (!visible) {
    std::transform(gpus.begin(), gpus.end(), std::back_inserter(nodes),
                   [](const Gpu& gpu) { return gpu.numa_node; });
    return nodes;
  }
  const int num_files = base::count_gpu_files(root);
  const int num_gpus = num_files > 0 ? num_files : static_cast<int>(gpus.size());
  for (const std::string& entry : visible_entries(*visible)) {
    if (!names_a_gpu(entry, num_gpus, gpus)) {
      break;
    }
    const auto index = base::parse_integer(entry, 0, static_cast<int64_t>(gpus.size()) - 1);
    // "MIG-GPU-<uuid>/1/0" has the GPU's name in it; the newer "MIG-<uuid>" has not.
    const std::string uuid =
        entry.starts_with("MIG-GPU-") ? entry.substr(4, entry.find('/') - 4) : entry;
    const auto found =
        index ? gpus.begin() + *index : std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
          return !gpu.uuid.empty() && gpu.uuid.starts_with(uuid);
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

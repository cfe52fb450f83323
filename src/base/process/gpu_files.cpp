#include "base/process/gpu_files.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>

#include "base/env.h"

namespace lockstep::base {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJetson[] = {"/dev/nvhost-ctrl-gpu", "/dev/nvgpu"};
constexpr const char* kWindows = "/dev/dxg";
constexpr const char* kWindowsLibrary = "/usr/lib/wsl/lib/libcuda.so.1";
// A container in WSL 2 is given the driver's own folder, and links to it elsewhere.
constexpr const char* kWindowsDrivers = "/usr/lib/wsl/drivers";
constexpr const char* kDriversLibrary = "libcuda.so.1.1";

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool has_windows_library(const std::string& root) {
  if (is_there(root + kWindowsLibrary)) {
    return true;
  }
  std::error_code error;
  const fs::directory_iterator folders(root + kWindowsDrivers, error);
  return std::any_of(begin(folders), end(folders), [](const fs::directory_entry& folder) {
    return is_there(folder.path() / kDriversLibrary);
  });
}

}  // namespace

int count_gpu_files(const std::string& root) {
  const std::string prefix = "nvidia";
  int count = 0;
  std::error_code error;
  for (const auto& device : fs::directory_iterator(root + "/dev", error)) {
    const std::string name = device.path().filename();
    count += name.starts_with(prefix) && parse_integer(name.substr(prefix.size()), 0, INT32_MAX);
  }
  return count;
}

bool has_gpu_without_file(const std::string& root) {
  return std::any_of(std::begin(kJetson), std::end(kJetson),
                     [&](const char* file) { return is_there(root + file); }) ||
         (is_there(root + kWindows) && has_windows_library(root));
}

}  // namespace lockstep::base

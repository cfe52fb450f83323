#include "image/gpu_driver.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <sstream>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/process/gpu_files.h"
#include "base/text/text.h"
#include "base/unique_fd.h"

namespace lockstep::image {

namespace {

namespace fs = std::filesystem;

// CUDA itself, what it loads to compile and to debug, and NVML.
constexpr const char* kLibraries[] = {"libcuda",
                                      "libcudadebugger",
                                      "libnvidia-ml",
                                      "libnvidia-cfg",
                                      "libnvidia-ptxjitcompiler",
                                      "libnvidia-nvvm",
                                      "libnvidia-gpucomp",
                                      "libnvidia-allocator",
                                      "libnvidia-fatbinaryloader",
                                      "libnvidia-opencl",
                                      "libnvidia-pkcs11",
                                      "libnvidia-pkcs11-openssl3",
                                      "libdxcore",
                                      "libd3d12core"};
constexpr const char* kCuda = "libcuda.so.1";

constexpr const char* kServices[] = {"/run/nvidia-persistenced", "/run/nvidia-fabricmanager"};
constexpr const char* kMpsFolder = "/tmp/nvidia-mps";

// Beyond what /etc/ld.so.conf names: containers of clouds, WSL 2, Debian, NixOS; then the loader's
// own.
constexpr const char* kFolders[] = {"/usr/local/nvidia/lib64",
                                    "/usr/lib/wsl/lib",
                                    "/run/opengl-driver/lib",
#if defined(__x86_64__)
                                    "/lib/x86_64-linux-gnu",
                                    "/usr/lib/x86_64-linux-gnu",
                                    "/usr/lib/x86_64-linux-gnu/nvidia/current",
#elif defined(__aarch64__)
                                    "/lib/aarch64-linux-gnu",
                                    "/usr/lib/aarch64-linux-gnu",
                                    "/usr/lib/aarch64-linux-gnu/nvidia",
#endif
                                    "/lib64",
                                    "/usr/lib64",
                                    "/lib",
                                    "/usr/lib"};

bool has_file(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Lines of ld.so.conf that name folders; `include` stands for the folder of parts, as everywhere.
std::vector<std::string> configured_folders(const std::string& root) {
  std::vector<std::string> files{root + "/etc/ld.so.conf"};
  std::error_code error;
  for (const auto& file : fs::directory_iterator(root + "/etc/ld.so.conf.d", error)) {
    if (file.path().extension() == ".conf") {
      files.push_back(file.path().string());
    }
  }
  std::sort(files.begin() + 1, files.end());
  std::vector<std::string> folders;
  for (const std::string& file : files) {
    try {
      std::istringstream lines(base::read_file(file));
      for (std::string line; std::getline(lines, line);) {
        line.erase(std::min(line.find_first_of("# \t\r"), line.size()));
        if (line.starts_with('/')) {
          folders.push_back(line);
        }
      }
    } catch (const IoError&) {
      continue;  // there is none, or it is not for us
    }
  }
  return folders;
}

// "libcuda.so", "libcuda.so.1", "libcuda.so.580.95.05".
bool is_driver_library(const std::string& name) {
  return std::any_of(std::begin(kLibraries), std::end(kLibraries), [&](const std::string& library) {
    const std::string stem = library + ".so";
    return name == stem ||
           (name.starts_with(stem + ".") &&
            name.find_first_not_of("0123456789.", stem.size()) == std::string::npos);
  });
}

// The file itself, if it is a library for this machine. The toolkit's stubs have the driver's names
// and do nothing.
std::optional<std::string> library_file(const fs::path& path) {
  std::error_code error;
  const fs::path file = fs::canonical(path, error);
  if (error || !fs::is_regular_file(file, error) || file.parent_path().filename() == "stubs") {
    return std::nullopt;
  }
  try {
    const auto elf = read_elf(file.string());
    return elf && elf->machine == host_machine() ? std::optional(file.string()) : std::nullopt;
  } catch (const IoError&) {
    return std::nullopt;
  }
}

void add_libraries_of(const std::string& folder, std::map<std::string, std::string>& libraries) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (!is_driver_library(name) || libraries.contains(name)) {
      continue;
    }
    if (const auto file = library_file(entry.path())) {
      libraries[name] = *file;
    }
  }
}

std::string version_of(const std::string& libcuda) {
  const std::string name = fs::path(libcuda).filename();
  const std::string stem = "libcuda.so.";
  return name.starts_with(stem) && name != kCuda ? name.substr(stem.size()) : "";
}

std::vector<std::string> services_of(const GpuDriverOptions& options) {
  std::vector<std::string> services(std::begin(kServices), std::end(kServices));
  // A relative one means another folder in each process, and "/" would hide the image.
  const fs::path mps = options.mps_folder.empty() ? kMpsFolder : options.mps_folder;
  if (mps.is_absolute() && mps.lexically_normal() != "/") {
    services.push_back(mps.string());
  }
  std::erase_if(services, [&](const std::string& folder) {
    std::error_code error;
    return !fs::is_directory(options.root + folder, error);
  });
  return services;
}

}  // namespace

std::optional<GpuDriver> find_gpu_driver(const GpuDriverOptions& options) {
  if (!has_file(options.root + "/dev/nvidiactl") && base::count_gpu_files(options.root) == 0 &&
      !base::has_gpu_without_file(options.root)) {
    return std::nullopt;  // there is no driver to go with the libraries
  }
  std::vector<std::string> folders = options.folders;
  for (const auto& more : {configured_folders(options.root),
                           std::vector<std::string>(std::begin(kFolders), std::end(kFolders))}) {
    folders.insert(folders.end(), more.begin(), more.end());
  }
  std::map<std::string, std::string> libraries;
  for (const std::string& folder : folders) {
    add_libraries_of(options.root + folder, libraries);
  }
  if (!libraries.contains(kCuda)) {
    return std::nullopt;
  }
  GpuDriver driver{.version = version_of(libraries.at(kCuda)), .services = services_of(options)};
  for (const auto& [name, source] : libraries) {
    driver.libraries.push_back({.name = name, .source = source});
  }
  return driver;
}

std::optional<GpuDriver> host_gpu_driver() {
  const base::Env env;
  if (env.text("LOCKSTEP_DEVICE").value_or("") == "cpu") {
    return std::nullopt;
  }
  std::vector<std::string> folders = base::split(env.text("LD_LIBRARY_PATH").value_or(""), ':');
  std::erase_if(folders, [](const std::string& folder) { return !folder.starts_with('/'); });
  return find_gpu_driver(
      {.folders = folders, .mps_folder = env.text("CUDA_MPS_PIPE_DIRECTORY").value_or("")});
}

namespace {

std::optional<GlibcVersion> image_glibc(const std::string& root) {
  for (const char* folder : kFolders) {
    const std::string library = root + folder + "/libc.so.6";
    try {
      if (const auto version = has_file(library) ? newest_glibc(library) : std::nullopt) {
        return version;
      }
    } catch (const IoError&) {
      continue;  // one that may not be read tells nothing
    }
  }
  return std::nullopt;
}

std::string text_of(const std::optional<GlibcVersion>& version) {
  return version ? fmt::format("{}.{}", version->first, version->second) : "";
}

}  // namespace

GpuNeeds look_at_gpu_needs(const std::string& root) {
  GpuNeeds needs;
  std::optional<GlibcVersion> needed;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(root + kDriverFolder, error)) {
    ++needs.num_libraries;
    needed = std::max(needed, newest_glibc(file.path().string()));
    const std::string version = version_of(file.path().string());
    needs.version = version.empty() ? needs.version : version;
  }
  const auto has = image_glibc(root);
  needs.needed_glibc = text_of(needed);
  needs.image_glibc = text_of(has);
  if (needs.num_libraries == 0) {
    return needs;
  }
  if (!has) {
    needs.problem =
        "the GPU driver's libraries need glibc, and the image has none: build it on one that has "
        "(Debian, Ubuntu, Rocky), not on Alpine or an empty folder";
  } else if (needed > has) {
    needs.problem = fmt::format(
        "the GPU driver's libraries need glibc {}, and the image has {}: build it on a newer base "
        "(Debian 12 has 2.36)",
        needs.needed_glibc, needs.image_glibc);
  } else if (has_file(root + "/dev/nvidiactl") && !has_file(root + "/dev/nvidia-uvm")) {
    needs.problem =
        "CUDA will not start: there is no /dev/nvidia-uvm, and a program in an image cannot make "
        "it; "
        "as root, outside: nvidia-modprobe -u -c=0";
  }
  return needs;
}

}  // namespace lockstep::image

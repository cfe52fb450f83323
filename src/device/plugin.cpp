#include "device/plugin.h"

#include <dlfcn.h>
#include <filesystem>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/env.h"
#include "base/process/process.h"

namespace lockstep::device {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "liblockstep_cuda.so";
constexpr const char* kVariable = "LOCKSTEP_CUDA_PLUGIN";

struct Loaded {
  const LockstepCudaPlugin* plugin = nullptr;
  std::string state;
};

Loaded open(const fs::path& file) {
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* error = dlerror();
    return {nullptr, fmt::format("{} cannot be loaded: {}", file.string(), error ? error : "?")};
  }
  const auto entry =
      reinterpret_cast<LockstepCudaPluginEntry>(dlsym(handle, LOCKSTEP_CUDA_PLUGIN_ENTRY));
  if (!entry) {
    return {nullptr, fmt::format("{} is no plug-in of lockstep: it has no {}", file.string(),
                                 LOCKSTEP_CUDA_PLUGIN_ENTRY)};
  }
  const LockstepCudaPlugin* plugin = entry();
  if (plugin->version != LOCKSTEP_CUDA_PLUGIN_VERSION) {
    return {nullptr, fmt::format("{} is of version {}, this program needs {}; build both together",
                                 file.string(), plugin->version, LOCKSTEP_CUDA_PLUGIN_VERSION)};
  }
  return {plugin, file.string()};
}

Loaded find() {
  if (const auto named = base::Env().text(kVariable)) {
    Loaded loaded = open(*named);
    if (!loaded.plugin) {
      throw UsageError("{}={}: {}", kVariable, *named, loaded.state);
    }
    return loaded;
  }
  const fs::path folder = fs::path(base::own_program()).parent_path();
  for (const fs::path& file : {folder / kFile, folder.parent_path() / "lib" / "lockstep" / kFile}) {
    std::error_code ignored;
    if (fs::exists(file, ignored)) {
      Loaded loaded = open(file);
      if (!loaded.plugin) {
        log::warn("device", "{}", loaded.state);
      }
      return loaded;
    }
  }
  return {nullptr, fmt::format("{} is neither in {} nor in ../lib/lockstep beside it", kFile,
                               folder.string())};
}

const Loaded& loaded() {
  static const Loaded result = find();
  return result;
}

}  // namespace

void load_plugin() {
  const Loaded& result = loaded();
  log::debug("device", "plug-in: {}", result.state);
}

const LockstepCudaPlugin* plugin() {
  return loaded().plugin;
}

std::string plugin_state() {
  return loaded().state;
}

void check_plugin(const char* error, const char* what) {
  if (error) {
    throw InternalError("cuda: {}: {}", what, error);
  }
}

}  // namespace lockstep::device

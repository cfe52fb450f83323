#include "device/plugin.h"

#include <dlfcn.h>
#include <filesystem>
#include <optional>
#include <vector>

#include <link.h>

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

Loaded refused(const std::string& state) {
  return {nullptr, state};
}

Loaded take(void* handle, const std::string& file) {
  const auto entry =
      reinterpret_cast<LockstepCudaPluginEntry>(dlsym(handle, LOCKSTEP_CUDA_PLUGIN_ENTRY));
  if (!entry) {
    return refused(fmt::format("{} is no plug-in of lockstep: it has no {}", file,
                               LOCKSTEP_CUDA_PLUGIN_ENTRY));
  }
  const LockstepCudaPlugin* plugin = entry();
  if (plugin->version != LOCKSTEP_CUDA_PLUGIN_VERSION) {
    return refused(fmt::format("{} is of version {}, this program needs {}; build both together",
                               file, plugin->version, LOCKSTEP_CUDA_PLUGIN_VERSION));
  }
  return {plugin, file};
}

std::string last_error() {
  const char* error = dlerror();
  return error ? error : "?";
}

Loaded open(const fs::path& file) {
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  return handle ? take(handle, file.string())
                : refused(fmt::format("{} cannot be loaded: {}", file.string(), last_error()));
}

// As the loader finds libraries: by the run path of the program that is linked with lockstep, which
// CMake's package and pkg-config set to where `make install` puts the plug-in, or LD_LIBRARY_PATH.
// Nothing if there is no such file.
std::optional<Loaded> open_by_name() {
  void* handle = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const std::string error = last_error();
    return error.starts_with(std::string(kFile) + ": cannot open shared object file")
               ? std::nullopt
               : std::optional(refused(fmt::format("{} cannot be loaded: {}", kFile, error)));
  }
  link_map* map = nullptr;
  dlinfo(handle, RTLD_DI_LINKMAP, &map);
  return take(handle, map ? map->l_name : kFile);
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
  std::optional<Loaded> loaded;
  for (const fs::path& file : {folder / kFile, folder.parent_path() / "lib" / "lockstep" / kFile}) {
    std::error_code ignored;
    if (!loaded && fs::exists(file, ignored)) {
      loaded = open(file);
    }
  }
  if (!loaded) {
    loaded = open_by_name();
  }
  if (!loaded) {
    return refused(
        fmt::format("{} is neither in {}, nor in ../lib/lockstep beside it, nor in the "
                    "program's run path",
                    kFile, folder.string()));
  }
  if (!loaded->plugin) {
    log::warn("device", "{}", loaded->state);
  }
  return *loaded;
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

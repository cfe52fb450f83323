// The libraries that a GPU program loads: libtorch's, those that NVIDIA makes, and the plug-in.

#include <algorithm>
#include <dlfcn.h>
#include <filesystem>
#include <map>
#include <sstream>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/process/process.h"
#include "base/unique_fd.h"
#include "doctor/gpu_probe.h"
#include "image/elf.h"
#include "image/libraries.h"

namespace lockstep::doctor {

namespace {

namespace fs = std::filesystem;

constexpr auto kLoaderTimeout = std::chrono::seconds(30);
constexpr const char* kPlugin = "liblockstep_cuda.so";
constexpr const char* kPluginVariable = "LOCKSTEP_CUDA_PLUGIN";

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string file_name(const std::string& path) {
  return fs::path(path).filename().string();
}

// Where each library is that the program needs, by its name; "" if the loader does not find it.
// Asked like this, as ldd does, the loader goes on after one that is missing (--list does not),
// and executes nothing.
std::map<std::string, std::string> loaded_by(const std::string& loader,
                                             const std::string& library) {
  const base::Output output = base::run_process(
      {.argv = {loader, library}, .env = {{"LD_PRELOAD", ""}, {"LD_TRACE_LOADED_OBJECTS", "1"}}},
      base::Deadline::after(kLoaderTimeout));
  std::map<std::string, std::string> found;
  std::istringstream lines(output.out);
  for (std::string line; std::getline(lines, line);) {
    const size_t arrow = line.find(" => ");
    const size_t begin = line.find_first_not_of(" \t");
    if (arrow == std::string::npos || begin >= arrow) {
      continue;
    }
    const std::string path = line.substr(arrow + 4, line.rfind(" (") - arrow - 4);
    found[line.substr(begin, arrow - begin)] = path.starts_with('/') ? path : "";
  }
  if (found.empty()) {
    throw IoError("{}", output.err.empty() ? output.status.text()
                                           : output.err.substr(0, output.err.find('\n')));
  }
  return found;
}

// The folder of libtorch_cpu.so.
std::string torch_folder(const std::string& program, std::string& loader) {
  const std::vector<std::string> needed = image::needed_libraries(program);
  for (const std::string& path : needed) {
    if (file_name(path) == "libtorch_cpu.so") {
      loader = needed.front();
      return fs::path(path).parent_path().lexically_normal().string();
    }
  }
  throw IoError("{} does not link libtorch_cpu.so", program);
}

void find_torch_cuda(const std::string& loader, GpuLibraries& libraries) try {
  const std::string library = libraries.torch_folder + "/libtorch_cuda.so";
  libraries.has_torch_cuda = is_there(library);
  if (!libraries.has_torch_cuda) {
    return;
  }
  for (const auto& [name, path] : loaded_by(loader, library)) {
    if (path.empty()) {
      libraries.missing.push_back(name);
    }
    for (const auto& [prefix, wanted] :
         {std::pair("libcudnn.so", &libraries.cudnn), std::pair("libnccl.so", &libraries.nccl),
          std::pair("libcufile.so", &libraries.cufile)}) {
      if (name.starts_with(prefix)) {
        wanted->path = path.empty() ? "" : fs::path(path).lexically_normal().string();
      }
    }
    if (name.starts_with("libcudart.so")) {
      libraries.cudart = path;
    }
  }
} catch (const Error& error) {
  libraries.torch_cuda_problem = error.what();
}

void find_plugin(const std::string& torch_program, GpuLibraries& libraries) {
  const fs::path folder = fs::path(torch_program).parent_path();
  std::vector<fs::path> places{folder / kPlugin,
                               folder.parent_path() / "lib" / "lockstep" / kPlugin};
  if (const auto named = base::Env().text(kPluginVariable)) {
    places = {*named};
    libraries.plugin.problem = is_there(*named) ? "" : "there is no such file";
    libraries.plugin.path = *named;
  }
  const auto found = std::find_if(places.begin(), places.end(), is_there);
  if (found != places.end()) {
    libraries.plugin.path = found->string();
    const GpuCode code = read_gpu_code(libraries.plugin.path);
    libraries.plugin_architectures = code.machine;
    libraries.plugin_ptx = code.ptx;
  }
}

// Null, with the reason in `library.problem`.
void* open(GpuLibrary& library, int flags = RTLD_NOW | RTLD_LOCAL) {
  void* handle = ::dlopen(library.path.c_str(), flags);
  if (!handle) {
    const char* error = ::dlerror();
    library.problem = error ? error : "it cannot be loaded";
  }
  return handle;
}

// Most of them: int f(int* version), 0 if it could.
void ask_version(GpuLibrary& library, const char* function) {
  void* handle = library.path.empty() ? nullptr : open(library);
  const auto ask = handle ? reinterpret_cast<int (*)(int*)>(::dlsym(handle, function)) : nullptr;
  if (ask && ask(&library.version) != 0) {
    library.version = 0;
  }
}

void ask_cudnn(GpuLibrary& cudnn) {
  if (void* handle = cudnn.path.empty() ? nullptr : open(cudnn)) {
    const auto version = reinterpret_cast<size_t (*)()>(::dlsym(handle, "cudnnGetVersion"));
    cudnn.version = version ? static_cast<int>(version()) : 0;
  }
}

// The head of the table that device/plugin_api.h declares.
struct PluginHead {
  int32_t version;
};

void ask_plugin(GpuLibraries& libraries, const std::string& entry_name) {
  GpuLibrary& plugin = libraries.plugin;
  GpuLibrary cudart{.path = libraries.cudart};
  if (plugin.path.empty() || !plugin.problem.empty() || cudart.path.empty() ||
      !open(cudart, RTLD_NOW | RTLD_GLOBAL)) {
    return;  // without libtorch's CUDA runtime it cannot be loaded, which is no fault of its own
  }
  void* handle = open(plugin);
  if (!handle) {
    return;
  }
  const auto entry = reinterpret_cast<const PluginHead* (*)()>(::dlsym(handle, entry_name.c_str()));
  if (!entry) {
    plugin.problem = "it is no plug-in of lockstep: it has no " + entry_name;
  } else {
    plugin.version = entry()->version;
  }
}

}  // namespace

GpuLibraries find_libraries(const GpuProbeOptions& options) {
  GpuLibraries libraries;
  try {
    std::string loader;
    libraries.torch_folder = torch_folder(options.torch_program, loader);
    find_torch_cuda(loader, libraries);
  } catch (const Error& error) {
    libraries.torch_problem = error.what();
  }
  for (const char* file : {"/sys/module/nvidia_fs/version", "/proc/driver/nvidia-fs/version"}) {
    try {
      const std::string text = base::read_file(options.root + file);
      libraries.nvidia_fs = text.substr(0, text.find('\n'));
    } catch (const IoError&) {
      continue;  // not loaded, or of another time
    }
  }
  find_plugin(options.torch_program, libraries);
  return libraries;
}

std::vector<LibraryQuestion> library_questions(const std::string& plugin_entry) {
  return {{&GpuLibraries::cudnn, [](GpuLibraries& all) { ask_cudnn(all.cudnn); }},
          {&GpuLibraries::nccl, [](GpuLibraries& all) { ask_version(all.nccl, "ncclGetVersion"); }},
          {&GpuLibraries::cufile,
           [](GpuLibraries& all) { ask_version(all.cufile, "cuFileGetVersion"); }},
          {&GpuLibraries::plugin,
           [plugin_entry](GpuLibraries& all) { ask_plugin(all, plugin_entry); }}};
}

}  // namespace lockstep::doctor

#include "device/cuda_library.h"

#include <dlfcn.h>
#include <filesystem>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/deadline.h"
#include "base/env.h"
#include "base/process/cuda_needs.h"
#include "device/plugin.h"

namespace lockstep::device {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDriver = "libcuda.so.1";
constexpr const char* kLibrary = "libtorch_cuda.so";

// What libtorch registers its CUDA support under.
constexpr const char* kHooksName = "CUDAHooks";

std::string last_dl_error() {
  const char* error = dlerror();
  return error ? error : "unknown error";
}

// A driver that is too old finds no GPU, and libtorch says nothing of the reason.
std::string problem_of_driver(void* driver) {
  using GetVersion = int (*)(int*);
  const auto get_version = reinterpret_cast<GetVersion>(dlsym(driver, "cuDriverGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0 || version >= base::kNeededCuda) {
    return "";
  }
  return fmt::format(
      "the NVIDIA driver runs CUDA up to {}, and this libtorch needs {}: install driver {} or "
      "newer "
      "(on a data-center GPU the package cuda-compat-13-0 does, too)",
      base::cuda_text(version), base::cuda_text(base::kNeededCuda), base::kNeededDriver);
}

// Handles are never closed: what the libraries have registered stays in use until the process ends.
std::string open_libraries() {
  void* const driver = dlopen(kDriver, RTLD_NOW | RTLD_GLOBAL);
  if (!driver) {
    return fmt::format(
        "no NVIDIA driver: {} was not found; install the driver, or make it visible in this "
        "container",
        kDriver);
  }
  if (std::string problem = problem_of_driver(driver); !problem.empty()) {
    return problem;
  }
  const fs::path library = fs::path(libtorch_folder()) / kLibrary;
  std::error_code ignored;
  if (!fs::exists(library, ignored)) {
    return fmt::format(
        "{} is not beside libtorch_cpu.so in {}: this libtorch was installed without its CUDA "
        "part; `LOCKSTEP_GPU=1 make setup` fetches it",
        kLibrary, library.parent_path().string());
  }
  if (!dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
    return fmt::format(
        "{} cannot be loaded: {}; `LOCKSTEP_GPU=1 make setup` installs what it needs",
        library.string(), last_dl_error());
  }
  return "";
}

bool is_forbidden() {
  return base::Env().text("LOCKSTEP_DEVICE").value_or("") == "cpu";
}

// Only before anybody can have asked libtorch about CUDA.
std::string open_if_wanted() {
  if (is_forbidden()) {
    return "LOCKSTEP_DEVICE=cpu forbids it";
  }
  return open_libraries();
}

const std::string& open_once() {
  static const std::string problem = open_if_wanted();
  return problem;
}

// Called by libtorch's first question, in the place of its CUDA library, which is not loaded yet.
// Loading it registers the real hooks over this function.
std::unique_ptr<at::CUDAHooksInterface> make_hooks(at::CUDAHooksArgs args) {
  thread_local bool is_inside = false;
  if (is_inside || !open_once().empty()) {
    return nullptr;  // no CUDA
  }
  is_inside = true;
  auto hooks = at::CUDAHooksRegistry()->Create(kHooksName, args);
  is_inside = false;
  return hooks;
}

// A program that has loaded libtorch's CUDA library already needs nothing of this. It runs before
// the initialisers of the program's own globals, of which one may ask: its answer is kept, too.
[[gnu::constructor(101)]] void register_hooks() {
  auto* registry = at::CUDAHooksRegistry();
  if (!registry->Has(kHooksName)) {
    registry->Register(kHooksName, make_hooks, c10::REGISTRY_FALLBACK);
  }
}

std::string find_devices() {
  if (const std::string& problem = open_once(); !problem.empty()) {
    return problem;
  }
  if (!at::hasCUDA()) {
    return fmt::format(
        "libtorch was asked about CUDA before {} was loaded, and keeps its answer; call "
        "lockstep::init() or lockstep::cuda_is_available() first",
        kLibrary);
  }
  if (at::getNumGPUs() == 0) {
    const auto visible = base::Env().text("CUDA_VISIBLE_DEVICES");
    return visible ? fmt::format("CUDA_VISIBLE_DEVICES={} leaves no GPU to see", *visible)
                   : "the driver is there, but finds no GPU; `nvidia-smi` says more";
  }
  return "";
}

std::string load() {
  const auto begin = base::Clock::now();
  std::string problem = find_devices();
  if (problem.empty()) {
    load_plugin();
    log::debug("device", "CUDA: {} GPUs, loaded in {}", at::getNumGPUs(),
               base::to_text(base::Clock::now() - begin));
  }
  return problem;
}

}  // namespace

const std::string& load_cuda() {
  static const std::string problem = load();
  return problem;
}

void log_cuda() {
  const std::string& problem = load_cuda();
  if (problem.empty()) {
    return;
  }
  // Nobody misses a GPU where there is no driver, or where the environment hides it.
  const bool has_driver = dlopen(kDriver, RTLD_LAZY | RTLD_NOLOAD) != nullptr;
  const std::string visible = base::Env().text("CUDA_VISIBLE_DEVICES").value_or("all");
  const bool is_hidden = is_forbidden() || visible.empty() || visible == "-1";
  if (has_driver && !is_hidden) {
    log::warn("device", "the CPU is used: {}", problem);
  } else {
    log::debug("device", "the CPU is used: {}", problem);
  }
}

std::string libtorch_folder() {
  Dl_info info{};
  LOCKSTEP_CHECK(dladdr(reinterpret_cast<void*>(&at::CUDAHooksRegistry), &info) != 0,
                 "libtorch is not in this process");
  return fs::path(info.dli_fname).parent_path().string();
}

}  // namespace lockstep::device

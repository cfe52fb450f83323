// What the kernel, NVML and libcuda tell.

#include <algorithm>
#include <cctype>
#include <dlfcn.h>
#include <filesystem>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/process/gpu_files.h"
#include "base/unique_fd.h"
#include "doctor/gpu_probe.h"
#include "doctor/nvml.h"

namespace lockstep::doctor {

namespace {

namespace fs = std::filesystem;

constexpr const char* kNvidia = "0x10de";
constexpr const char* kDisplayClass = "0x03";
constexpr unsigned kMaxDevices = 64;
constexpr unsigned kMaxProcesses = 1024;

// The first line; empty if there is no such file.
std::string first_line(const std::string& path) {
  try {
    const std::string text = base::read_file(path);
    return text.substr(0, text.find('\n'));
  } catch (const IoError&) {
    return "";
  }
}

bool exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

// NVML pads the domain to eight digits and writes capitals; the kernel does neither.
std::string pci_address(const NvmlPci& pci) {
  return fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
}

using DeviceNumber = int (*)(NvmlDevice, unsigned*);

int number_of(DeviceNumber function, NvmlDevice device) {
  unsigned value = 0;
  return function && function(device, &value) == kNvmlSuccess ? static_cast<int>(value) : kUnknown;
}

std::string text_of(int (*function)(NvmlDevice, char*, unsigned), NvmlDevice device) {
  char value[256] = {};
  return function && function(device, value, sizeof value - 1) == kNvmlSuccess ? value : "";
}

int first_of_two(int (*function)(NvmlDevice, unsigned*, unsigned*), NvmlDevice device) {
  unsigned current = 0, pending = 0;
  return function && function(device, &current, &pending) == kNvmlSuccess
             ? static_cast<int>(current)
             : kUnknown;
}

int64_t ecc_errors(const Nvml& nvml, NvmlDevice device, unsigned kind) {
  unsigned long long count = 0;
  return nvml.ecc_errors && nvml.ecc_errors(device, kind, kNvmlSinceLoad, &count) == kNvmlSuccess
             ? static_cast<int64_t>(count)
             : kUnknown;
}

void ask_speed(const Nvml& nvml, NvmlDevice device, GpuDevice& facts) {
  unsigned value = 0;
  if (nvml.clock && nvml.clock(device, kNvmlSmClock, &value) == kNvmlSuccess) {
    facts.sm_clock_mhz = static_cast<int>(value);
  }
  if (nvml.max_clock && nvml.max_clock(device, kNvmlSmClock, &value) == kNvmlSuccess) {
    facts.max_sm_clock_mhz = static_cast<int>(value);
  }
  if (nvml.temperature && nvml.temperature(device, 0, &value) == kNvmlSuccess) {
    facts.temperature_c = static_cast<int>(value);
  }
  unsigned long long reasons = 0;
  if (nvml.clock_reasons && nvml.clock_reasons(device, &reasons) == kNvmlSuccess) {
    facts.clock_reasons = reasons;
  }
  facts.power_mw = number_of(nvml.power, device);
  facts.power_limit_mw = number_of(nvml.power_limit, device);
  facts.power_default_mw = number_of(nvml.power_default, device);
  facts.pcie_generation = number_of(nvml.pcie_generation, device);
  facts.max_pcie_generation = number_of(nvml.max_pcie_generation, device);
  facts.pcie_width = number_of(nvml.pcie_width, device);
  facts.max_pcie_width = number_of(nvml.max_pcie_width, device);
}

void ask_memory(const Nvml& nvml, NvmlDevice device, GpuDevice& facts) {
  NvmlMemory memory{};
  if (nvml.memory && nvml.memory(device, &memory) == kNvmlSuccess) {
    facts.memory_total_bytes = memory.total;
    facts.memory_free_bytes = memory.free;
  }
  facts.ecc = first_of_two(nvml.ecc, device);
  facts.ecc_corrected = ecc_errors(nvml, device, kNvmlCorrected);
  facts.ecc_uncorrected = ecc_errors(nvml, device, kNvmlUncorrected);
  facts.pages_pending = number_of(nvml.retired_pending, device);
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  if (nvml.remapped &&
      nvml.remapped(device, &corrected, &uncorrected, &pending, &failed) == kNvmlSuccess) {
    facts.pages_pending = std::max(facts.pages_pending, static_cast<int>(pending));
    facts.remap_failed = static_cast<int>(failed);
  }
}

void ask_processes(const Nvml& nvml, NvmlDevice device, GpuDevice& facts) {
  std::vector<NvmlProcess> processes(16);
  unsigned count = 0;
  int error = kNvmlTooSmall;
  while (nvml.processes && error == kNvmlTooSmall && processes.size() <= kMaxProcesses) {
    processes.resize(processes.size() * 2);  // some may be starting while we ask
    count = static_cast<unsigned>(processes.size());
    error = nvml.processes(device, &count, processes.data());
  }
  if (error != kNvmlSuccess) {
    return;
  }
  for (size_t i = 0; i < std::min<size_t>(count, processes.size()); ++i) {
    const bool is_told = processes[i].memory != ~0ull;
    facts.processes.push_back(
        {.pid = processes[i].pid, .memory_bytes = is_told ? processes[i].memory : 0});
  }
}

void ask_device(const Nvml& nvml, NvmlDevice device, const std::string& root, GpuDevice& facts) {
  facts.name = text_of(nvml.name, device);
  facts.uuid = text_of(nvml.uuid, device);
  NvmlPci pci{};
  if (nvml.pci && nvml.pci(device, &pci) == kNvmlSuccess) {
    facts.pci_address = pci_address(pci);
    const std::string node =
        first_line(root + "/sys/bus/pci/devices/" + facts.pci_address + "/numa_node");
    facts.numa_node = static_cast<int>(base::parse_integer(node, 0, INT32_MAX).value_or(kUnknown));
  }
  int major = 0, minor = 0;
  if (nvml.capability && nvml.capability(device, &major, &minor) == kNvmlSuccess) {
    facts.capability = 10 * major + minor;
  }
  facts.persistence = number_of(nvml.persistence, device);
  facts.compute_mode = number_of(nvml.compute_mode, device);
  facts.mig = first_of_two(nvml.mig, device);
  ask_memory(nvml, device, facts);
  ask_speed(nvml, device, facts);
  ask_processes(nvml, device, facts);
}

GpuLink ask_link(const Nvml& nvml, NvmlDevice from, NvmlDevice to) {
  GpuLink link;
  unsigned value = 0;
  if (nvml.topology && nvml.topology(from, to, &value) == kNvmlSuccess) {
    link.level = static_cast<int>(value);
  }
  if (nvml.peer && nvml.peer(from, to, kNvmlPeerNvlink, &value) == kNvmlSuccess) {
    link.nvlink = static_cast<int>(value);
  }
  if (nvml.peer && nvml.peer(from, to, kNvmlPeerRead, &value) == kNvmlSuccess) {
    link.peer_read = static_cast<int>(value);
  }
  return link;
}

void ask_devices(const Nvml& nvml, const std::string& root, GpuFacts& facts) {
  unsigned count = 0;
  if (const int error = nvml.device_count(&count)) {
    facts.driver.nvml_problem = nvml.error_text(error);
    return;
  }
  std::vector<NvmlDevice> handles;
  for (unsigned i = 0; i < std::min(count, kMaxDevices); ++i) {
    GpuDevice device{.index = static_cast<int>(i)};
    NvmlDevice handle = nullptr;
    if (const int error = nvml.device_at(i, &handle)) {
      device.problem = nvml.error_text(error);
      handle = nullptr;
    } else {
      ask_device(nvml, handle, root, device);
    }
    handles.push_back(handle);
    facts.devices.push_back(std::move(device));
  }
  for (size_t from = 0; from < handles.size(); ++from) {
    for (size_t to = from + 1; to < handles.size(); ++to) {
      if (handles[from] && handles[to]) {
        facts.links.push_back(ask_link(nvml, handles[from], handles[to]));
        facts.links.back().from = static_cast<int>(from);
        facts.links.back().to = static_cast<int>(to);
      }
    }
  }
}

}  // namespace

GpuDriver read_driver(const std::string& root) {
  GpuDriver driver;
  driver.module_version = first_line(root + "/proc/driver/nvidia/version");
  driver.has_device_file = base::count_gpu_files(root) > 0;
  driver.has_control_file = exists(root + "/dev/nvidiactl");
  driver.has_uvm_file = exists(root + "/dev/nvidia-uvm");
  driver.is_other = base::has_gpu_without_file(root);
  std::error_code error;
  for (const auto& device : fs::directory_iterator(root + "/sys/bus/pci/devices", error)) {
    if (first_line(device.path().string() + "/vendor") == kNvidia &&
        first_line(device.path().string() + "/class").starts_with(kDisplayClass)) {
      driver.pci_gpus.push_back(device.path().filename());
    }
  }
  std::sort(driver.pci_gpus.begin(), driver.pci_gpus.end());
  return driver;
}

void ask_nvml(GpuFacts& facts, const std::string& root) {
  facts.driver.nvml_problem.clear();
  const Nvml nvml = Nvml::load(facts.driver.nvml_problem);
  if (!facts.driver.nvml_problem.empty()) {
    return;
  }
  if (const int error = nvml.init()) {
    facts.driver.nvml_problem = nvml.error_text(error);
    return;
  }
  char version[96] = {};
  if (nvml.driver_version && nvml.driver_version(version, sizeof version - 1) == kNvmlSuccess) {
    facts.driver.version = version;
  }
  ask_devices(nvml, root, facts);
  nvml.shutdown();
}

void ask_cuda(GpuDriver& driver) {
  driver.cuda_problem.clear();
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    const char* error = ::dlerror();
    driver.cuda_problem = error ? error : "libcuda.so.1 cannot be loaded";
    return;
  }
  const auto init = reinterpret_cast<int (*)(unsigned)>(::dlsym(library, "cuInit"));
  const auto version = reinterpret_cast<int (*)(int*)>(::dlsym(library, "cuDriverGetVersion"));
  const auto count = reinterpret_cast<int (*)(int*)>(::dlsym(library, "cuDeviceGetCount"));
  if (!init || !version || !count) {
    driver.cuda_problem = "libcuda.so.1 lacks functions that every driver has";
    return;
  }
  driver.cuda_error = version(&driver.cuda_version);  // the toolkit's stub fails here already
  if (driver.cuda_error == 0) {
    driver.cuda_error = init(0);
  }
  if (driver.cuda_error == 0) {
    driver.cuda_error = count(&driver.cuda_devices);
  }
}

}  // namespace lockstep::doctor

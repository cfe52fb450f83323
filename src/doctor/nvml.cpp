#include "doctor/nvml.h"

#include <dlfcn.h>

#include <fmt/format.h>

namespace lockstep::doctor {

namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";

template <typename Function>
void find(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
}

void find_device_functions(void* library, Nvml& nvml) {
  find(library, nvml.name, "nvmlDeviceGetName");
  find(library, nvml.uuid, "nvmlDeviceGetUUID");
  find(library, nvml.pci, "nvmlDeviceGetPciInfo_v3");
  find(library, nvml.memory, "nvmlDeviceGetMemoryInfo");
  find(library, nvml.capability, "nvmlDeviceGetCudaComputeCapability");
  find(library, nvml.clock, "nvmlDeviceGetClockInfo");
  find(library, nvml.max_clock, "nvmlDeviceGetMaxClockInfo");
  find(library, nvml.clock_reasons, "nvmlDeviceGetCurrentClocksEventReasons");
  if (!nvml.clock_reasons) {  // drivers before 535
    find(library, nvml.clock_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
  }
  find(library, nvml.temperature, "nvmlDeviceGetTemperature");
  find(library, nvml.power, "nvmlDeviceGetPowerUsage");
  find(library, nvml.power_limit, "nvmlDeviceGetEnforcedPowerLimit");
  find(library, nvml.power_default, "nvmlDeviceGetPowerManagementDefaultLimit");
  find(library, nvml.persistence, "nvmlDeviceGetPersistenceMode");
  find(library, nvml.compute_mode, "nvmlDeviceGetComputeMode");
  find(library, nvml.mig, "nvmlDeviceGetMigMode");
  find(library, nvml.ecc, "nvmlDeviceGetEccMode");
  find(library, nvml.ecc_errors, "nvmlDeviceGetTotalEccErrors");
  find(library, nvml.retired_pending, "nvmlDeviceGetRetiredPagesPendingStatus");
  find(library, nvml.remapped, "nvmlDeviceGetRemappedRows");
  find(library, nvml.pcie_generation, "nvmlDeviceGetCurrPcieLinkGeneration");
  find(library, nvml.max_pcie_generation, "nvmlDeviceGetMaxPcieLinkGeneration");
  find(library, nvml.pcie_width, "nvmlDeviceGetCurrPcieLinkWidth");
  find(library, nvml.max_pcie_width, "nvmlDeviceGetMaxPcieLinkWidth");
  find(library, nvml.processes, "nvmlDeviceGetComputeRunningProcesses_v3");
  find(library, nvml.topology, "nvmlDeviceGetTopologyCommonAncestor");
  find(library, nvml.peer, "nvmlDeviceGetP2PStatus");
}

}  // namespace

Nvml Nvml::load(std::string& problem) {
  Nvml nvml;
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* error = ::dlerror();
    problem = error ? error : fmt::format("{} cannot be loaded", kLibrary);
    return nvml;
  }
  find(library, nvml.init, "nvmlInit_v2");
  find(library, nvml.shutdown, "nvmlShutdown");
  find(library, nvml.error_text, "nvmlErrorString");
  find(library, nvml.driver_version, "nvmlSystemGetDriverVersion");
  find(library, nvml.device_count, "nvmlDeviceGetCount_v2");
  find(library, nvml.device_at, "nvmlDeviceGetHandleByIndex_v2");
  find_device_functions(library, nvml);
  if (!nvml.init || !nvml.shutdown || !nvml.error_text || !nvml.device_count || !nvml.device_at) {
    problem = fmt::format("{} lacks functions that every NVML has", kLibrary);
  }
  return nvml;
}

}  // namespace lockstep::doctor

#include "doctor/gpu_json.h"

#include <lockstep/base/error.h>

namespace lockstep::doctor {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuProcess, pid, memory_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuDevice, index, problem, name, uuid, pci_address, numa_node,
                                   memory_total_bytes, memory_free_bytes, capability, sm_clock_mhz,
                                   max_sm_clock_mhz, temperature_c, clock_reasons, power_mw,
                                   power_limit_mw, power_default_mw, persistence, compute_mode, mig,
                                   ecc, ecc_corrected, ecc_uncorrected, pages_pending, remap_failed,
                                   pcie_generation, max_pcie_generation, pcie_width, max_pcie_width,
                                   processes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuLink, from, to, level, nvlink, peer_read)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuLibrary, path, problem, version)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuLibraries, torch_folder, torch_problem, has_torch_cuda,
                                   torch_cuda_problem, missing, cudnn, nccl, cufile, cudart,
                                   nvidia_fs, plugin, plugin_architectures, plugin_ptx)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuDriver, module_version, has_device_file, has_control_file,
                                   has_uvm_file, is_other, pci_gpus, nvml_problem, version,
                                   cuda_problem, cuda_version, cuda_error, cuda_devices)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuFacts, wanted, has_visible, visible, probe_problem, driver,
                                   libraries, devices, links)

namespace {

using Json = nlohmann::ordered_json;

// kUnknown is null.
Json known(int64_t value) {
  return value < 0 ? Json() : Json(value);
}

Json watts(int milliwatts) {
  return milliwatts < 0 ? Json() : Json(milliwatts / 1000.0);
}

Json yes_or_no(int value) {
  return value < 0 ? Json() : Json(value != 0);
}

Json device_json(const GpuDevice& device) {
  Json json{{"index", device.index},
            {"name", device.name},
            {"uuid", device.uuid},
            {"pci_address", device.pci_address},
            {"numa_node", known(device.numa_node)},
            {"compute_capability", device.capability < 0 ? Json() : Json(device.capability / 10.0)},
            {"memory_total_bytes", device.memory_total_bytes},
            {"memory_free_bytes", device.memory_free_bytes},
            {"sm_clock_mhz", known(device.sm_clock_mhz)},
            {"max_sm_clock_mhz", known(device.max_sm_clock_mhz)},
            {"temperature_c", known(device.temperature_c)},
            {"power_w", watts(device.power_mw)},
            {"power_limit_w", watts(device.power_limit_mw)},
            {"persistence", yes_or_no(device.persistence)},
            {"mig", yes_or_no(device.mig)},
            {"ecc", yes_or_no(device.ecc)},
            {"ecc_corrected", known(device.ecc_corrected)},
            {"ecc_uncorrected", known(device.ecc_uncorrected)}};
  json["processes"] = Json::array();
  for (const GpuProcess& process : device.processes) {
    json["processes"].push_back({{"pid", process.pid}, {"memory_bytes", process.memory_bytes}});
  }
  return json;
}

}  // namespace

std::string to_json(const GpuFacts& facts) {
  return nlohmann::json(facts).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

GpuFacts facts_from_json(const std::string& text) try {
  return nlohmann::json::parse(text);
} catch (const nlohmann::json::exception& error) {
  throw FormatError("what was found out about the GPUs cannot be read: {}", error.what());
}

nlohmann::ordered_json devices_json(const GpuFacts& facts) {
  Json devices = Json::array();
  for (const GpuDevice& device : facts.devices) {
    devices.push_back(device_json(device));
  }
  return devices;
}

}  // namespace lockstep::doctor

#pragma once

// The part of NVIDIA's management library (libnvidia-ml.so.1) that the doctor asks, in declarations
// of our own: the library comes with the driver, and its header with a toolkit that need not be
// installed. Every function answers 0 (kNvmlSuccess) or an error.

#include <string>

namespace lockstep::doctor {

inline constexpr int kNvmlSuccess = 0;
inline constexpr int kNvmlTooSmall = 7;  // the array; the count says how many there are
inline constexpr unsigned kNvmlSmClock = 1;
inline constexpr unsigned kNvmlCorrected = 0;
inline constexpr unsigned kNvmlUncorrected = 1;
inline constexpr unsigned kNvmlSinceLoad = 0;
inline constexpr unsigned kNvmlPeerRead = 0;
inline constexpr unsigned kNvmlPeerNvlink = 2;

using NvmlDevice = struct NvmlDeviceState*;

struct NvmlPci {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};

struct NvmlMemory {
  unsigned long long total, free, used;
};

struct NvmlProcess {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};

// A function that this driver does not have is null.
struct Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_text)(int) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*device_count)(unsigned*) = nullptr;
  int (*device_at)(unsigned, NvmlDevice*) = nullptr;
  int (*name)(NvmlDevice, char*, unsigned) = nullptr;
  int (*uuid)(NvmlDevice, char*, unsigned) = nullptr;
  int (*pci)(NvmlDevice, NvmlPci*) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*capability)(NvmlDevice, int*, int*) = nullptr;
  int (*clock)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*max_clock)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*clock_reasons)(NvmlDevice, unsigned long long*) = nullptr;
  int (*temperature)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*power)(NvmlDevice, unsigned*) = nullptr;
  int (*power_limit)(NvmlDevice, unsigned*) = nullptr;
  int (*power_default)(NvmlDevice, unsigned*) = nullptr;
  int (*persistence)(NvmlDevice, unsigned*) = nullptr;
  int (*compute_mode)(NvmlDevice, unsigned*) = nullptr;
  int (*mig)(NvmlDevice, unsigned*, unsigned*) = nullptr;
  int (*ecc)(NvmlDevice, unsigned*, unsigned*) = nullptr;
  int (*ecc_errors)(NvmlDevice, unsigned, unsigned, unsigned long long*) = nullptr;
  int (*retired_pending)(NvmlDevice, unsigned*) = nullptr;
  int (*remapped)(NvmlDevice, unsigned*, unsigned*, unsigned*, unsigned*) = nullptr;
  int (*pcie_generation)(NvmlDevice, unsigned*) = nullptr;
  int (*max_pcie_generation)(NvmlDevice, unsigned*) = nullptr;
  int (*pcie_width)(NvmlDevice, unsigned*) = nullptr;
  int (*max_pcie_width)(NvmlDevice, unsigned*) = nullptr;
  int (*processes)(NvmlDevice, unsigned*, NvmlProcess*) = nullptr;
  int (*topology)(NvmlDevice, NvmlDevice, unsigned*) = nullptr;
  int (*peer)(NvmlDevice, NvmlDevice, unsigned, unsigned*) = nullptr;

  // Loads the library; it stays loaded. `problem` says why it cannot.
  static Nvml load(std::string& problem);
};

}  // namespace lockstep::doctor

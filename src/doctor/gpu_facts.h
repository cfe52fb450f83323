#pragma once

// What `lockstep doctor` knows of a machine's GPUs: plain data, found by gpu_probe.h and judged by
// gpu_checks.h. Tests make such tables by hand.

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::doctor {

inline constexpr int kUnknown = -1;

struct GpuProcess {
  int64_t pid = 0;
  uint64_t memory_bytes = 0;  // 0: the driver does not tell
};

// Of one device. An int that the driver does not tell is kUnknown, a number of bytes 0.
struct GpuDevice {
  int index = 0;        // NVML's, which is the order of the PCI addresses
  std::string problem;  // why the driver tells nothing; empty: it does
  std::string name;
  std::string uuid;
  std::string pci_address;  // "0000:1b:00.0", as in /sys/bus/pci/devices
  int numa_node = kUnknown;
  uint64_t memory_total_bytes = 0;
  uint64_t memory_free_bytes = 0;
  int capability = kUnknown;  // 90: compute capability 9.0
  int sm_clock_mhz = kUnknown;
  int max_sm_clock_mhz = kUnknown;
  int temperature_c = kUnknown;
  uint64_t clock_reasons = 0;  // NVML's bits: why the clock is below its maximum
  int power_mw = kUnknown;
  int power_limit_mw = kUnknown;
  int power_default_mw = kUnknown;
  int persistence = kUnknown;          // 0, 1
  int compute_mode = kUnknown;         // NVML's: 0 default, 2 prohibited, 3 one process
  int mig = kUnknown;                  // 0, 1
  int ecc = kUnknown;                  // 0, 1
  int64_t ecc_corrected = kUnknown;    // since the driver was loaded
  int64_t ecc_uncorrected = kUnknown;  // since the driver was loaded
  int pages_pending = kUnknown;        // 1: memory that a reset will retire or remap
  int remap_failed = kUnknown;         // 1: there is no spare memory left
  int pcie_generation = kUnknown;
  int max_pcie_generation = kUnknown;
  int pcie_width = kUnknown;
  int max_pcie_width = kUnknown;
  std::vector<GpuProcess> processes;
};

// Between two devices.
struct GpuLink {
  int from = 0;
  int to = 0;
  int level = kUnknown;      // NVML's: 0 one board, 10 to 50 further away over PCIe
  int nvlink = kUnknown;     // NVML's answers: 0 yes, anything else why not
  int peer_read = kUnknown;  // likewise: whether one reads the other's memory
};

// A library that a GPU program loads.
struct GpuLibrary {
  std::string path;     // empty: not found
  std::string problem;  // why it cannot be loaded or asked; empty: it can
  int version = 0;      // as it tells it itself; 0: it does not
};

struct GpuLibraries {
  std::string torch_folder;  // where libtorch_cpu.so is; empty: unknown, `torch_problem` says why
  std::string torch_problem;
  bool has_torch_cuda = false;       // libtorch_cuda.so is there too
  std::string torch_cuda_problem;    // why the dynamic loader cannot say what it needs
  std::vector<std::string> missing;  // libraries that it needs and the dynamic loader cannot find
  GpuLibrary cudnn;
  GpuLibrary nccl;
  GpuLibrary cufile;
  std::string cudart;     // path of the CUDA runtime that libtorch brings; empty: not found
  std::string nvidia_fs;  // version of the kernel module; empty: not loaded
  GpuLibrary plugin;      // liblockstep_cuda.so
  std::vector<int> plugin_architectures;  // 80, 90, ...; empty: unknown
  std::vector<int> plugin_ptx;            // from which newer devices' code can be made
};

struct GpuDriver {
  std::string module_version;  // of /proc/driver/nvidia/version, its first line; empty: not loaded
  bool has_device_file = false;            // a /dev/nvidia<N>
  bool has_control_file = false;           // /dev/nvidiactl
  bool has_uvm_file = false;               // /dev/nvidia-uvm
  bool is_other = false;                   // a driver without these files: WSL 2, Jetson
  std::vector<std::string> pci_gpus;       // addresses of NVIDIA's GPUs on the bus
  std::string nvml_problem = "not asked";  // empty: NVML answers
  std::string version;                     // "580.95.05", by NVML
  std::string cuda_problem = "not asked";  // why libcuda.so.1 cannot be loaded
  int cuda_version = 0;                    // 13000: the newest CUDA that it runs
  int cuda_error = 0;                      // of cuInit
  int cuda_devices = 0;                    // how many a program sees
};

struct GpuFacts {
  std::string wanted;  // LOCKSTEP_DEVICE
  bool has_visible = false;
  std::string visible;        // CUDA_VISIBLE_DEVICES
  std::string probe_problem;  // the process that asks the driver crashed or hung
  GpuDriver driver;
  GpuLibraries libraries;
  std::vector<GpuDevice> devices;
  std::vector<GpuLink> links;

  // Whether this machine has anything of NVIDIA's at all.
  bool has_gpu() const {
    return !driver.module_version.empty() || driver.has_device_file || driver.has_control_file ||
           driver.is_other || !driver.pci_gpus.empty();
  }
};

}  // namespace lockstep::doctor

// One device.

#include <algorithm>

#include <fmt/format.h>

#include "doctor/gpu_checks.h"

namespace lockstep::doctor {

namespace {

constexpr int kMinCapability = 75;  // CUDA 13 has no code for what came before
constexpr size_t kMaxNamedProcesses = 4;

// NVML's bits.
constexpr uint64_t kPowerCap = 0x4;
constexpr uint64_t kHardware = 0x8;
constexpr uint64_t kSoftwareThermal = 0x20;
constexpr uint64_t kHardwareThermal = 0x40;
constexpr uint64_t kPowerBrake = 0x80;

constexpr int kProhibited = 2;

double in_gib(uint64_t bytes) {
  return static_cast<double>(bytes) / (1u << 30);
}

class DeviceChecks {
 public:
  explicit DeviceChecks(const GpuDevice& device)
      : device_(device), name_(fmt::format("GPU {}", device.index)) {}

  std::vector<CheckResult> run() {
    summarize();
    check_mode();
    check_memory();
    check_clock();
    check_setup();
    return std::move(results_);
  }

 private:
  void add(CheckStatus status, std::string found, std::string fix) {
    results_.push_back({name_, status, std::move(found), std::move(fix)});
  }
  void note(std::string found, std::string fix) {
    add(CheckStatus::Note, std::move(found), std::move(fix));
  }
  void problem(std::string found, std::string fix) {
    add(CheckStatus::Problem, std::move(found), std::move(fix));
  }

  void summarize();
  void check_mode();
  void check_memory();
  void check_clock();
  void check_setup();
  std::string processes_text() const;

  const GpuDevice& device_;
  const std::string name_;
  std::vector<CheckResult> results_;
};

void DeviceChecks::summarize() {
  const GpuDevice& d = device_;
  std::string found = d.name.empty() ? "a GPU without a name" : d.name;
  if (d.memory_total_bytes > 0) {
    found += fmt::format(", {:.1f} GiB, {:.1f} free", in_gib(d.memory_total_bytes),
                         in_gib(d.memory_free_bytes));
  }
  if (d.capability >= 0) {
    found += fmt::format(", compute capability {}.{}", d.capability / 10, d.capability % 10);
  }
  if (d.sm_clock_mhz >= 0 && d.max_sm_clock_mhz >= 0) {
    found += fmt::format(", {} of {} MHz", d.sm_clock_mhz, d.max_sm_clock_mhz);
  }
  if (d.power_mw >= 0 && d.power_limit_mw >= 0) {
    found += fmt::format(", {} of {} W", d.power_mw / 1000, d.power_limit_mw / 1000);
  }
  if (!d.pci_address.empty()) {
    found += ", PCI " + d.pci_address;
  }
  if (d.numa_node >= 0) {
    found += fmt::format(", NUMA node {}", d.numa_node);
  }
  if (d.ecc == 0) {
    found += ", without ECC";
  }
  if (d.capability >= 0 && d.capability < kMinCapability) {
    problem(found + ": CUDA 13 has no code for it",
            "it is too old for this libtorch (7.5 or newer); run on the CPU with "
            "LOCKSTEP_DEVICE=cpu, or hide it by CUDA_VISIBLE_DEVICES");
  } else {
    add(CheckStatus::Ok, found, "");
  }
}

std::string DeviceChecks::processes_text() const {
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min(device_.processes.size(), kMaxNamedProcesses); ++i) {
    const GpuProcess& process = device_.processes[i];
    texts.push_back(process.memory_bytes > 0 ? fmt::format("pid {} with {:.1f} GiB", process.pid,
                                                           in_gib(process.memory_bytes))
                                             : fmt::format("pid {}", process.pid));
  }
  if (device_.processes.size() > texts.size()) {
    texts.push_back(fmt::format("{} more", device_.processes.size() - texts.size()));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

void DeviceChecks::check_mode() {
  const int mode = device_.compute_mode;
  const bool is_exclusive = mode > 0 && mode != kProhibited;
  if (mode == kProhibited) {
    problem("compute mode Prohibited: no program may use it",
            fmt::format("as root: nvidia-smi -i {} -c DEFAULT", device_.index));
  } else if (is_exclusive && !device_.processes.empty()) {
    problem(fmt::format("compute mode Exclusive, and taken: {}", processes_text()),
            fmt::format("wait for that process, or as root: nvidia-smi -i {} -c DEFAULT",
                        device_.index));
  } else if (is_exclusive) {
    note("compute mode Exclusive: one process at a time, so ranks cannot share it",
         fmt::format("fine with a rank per GPU; for --share-gpu start NVIDIA's MPS, or as root: "
                     "nvidia-smi -i {} -c DEFAULT",
                     device_.index));
  } else if (!device_.processes.empty()) {
    note(fmt::format("in use: {}", processes_text()),
         "they share its memory and its time: end what is not yours to keep, or choose other GPUs "
         "by CUDA_VISIBLE_DEVICES");
  }
  if (device_.mig == 1) {
    note("MIG is on: a program sees one part of it",
         "name parts by CUDA_VISIBLE_DEVICES=MIG-...,MIG-... (`nvidia-smi -L` lists them): "
         "`lockstep run` deals them to the ranks");
  }
}

void DeviceChecks::check_memory() {
  const std::string reset = fmt::format(
      "end what runs on it, then as root: nvidia-smi -i {} --gpu-reset, or reboot", device_.index);
  if (device_.ecc_uncorrected > 0) {
    problem(fmt::format("{} memory error{} that ECC could not correct since the driver was loaded",
                        device_.ecc_uncorrected, device_.ecc_uncorrected == 1 ? "" : "s"),
            "a program that met one has failed; " + reset + "; if they come back, replace it");
  }
  if (device_.remap_failed == 1) {
    problem("memory that is broken cannot be replaced any more (row remapping failed)",
            "replace the GPU");
  } else if (device_.pages_pending == 1) {
    note("memory that is broken will be replaced at the next reset", reset);
  }
}

void DeviceChecks::check_clock() {
  const uint64_t reasons = device_.clock_reasons;
  const std::string heat =
      device_.temperature_c >= 0 ? fmt::format(" ({} C)", device_.temperature_c) : "";
  if ((reasons & (kSoftwareThermal | kHardwareThermal)) != 0) {
    note(fmt::format("slowed down by heat{}", heat),
         "check its fans and the flow of air; the other GPUs wait for the slowest at every step");
  } else if ((reasons & kPowerBrake) != 0) {
    note("slowed down by the machine's power supply (power brake)",
         "the power supplies or the rack's limit do not suffice: see the machine's own log");
  } else if ((reasons & kHardware) != 0) {
    note(fmt::format("slowed down by its hardware{}", heat),
         "`nvidia-smi -q -d PERFORMANCE` says why");
  } else if ((reasons & kPowerCap) != 0) {
    note(fmt::format("at its power limit of {} W", device_.power_limit_mw / 1000),
         "normal under load; if nothing runs, see `nvidia-smi -q -d POWER`");
  }
  if (device_.power_limit_mw >= 0 && device_.power_default_mw > device_.power_limit_mw) {
    note(fmt::format("its power is limited to {} W, the default is {} W",
                     device_.power_limit_mw / 1000, device_.power_default_mw / 1000),
         fmt::format("if it is not meant, as root: nvidia-smi -i {} -pl {}", device_.index,
                     device_.power_default_mw / 1000));
  }
}

void DeviceChecks::check_setup() {
  if (device_.persistence == 0) {
    note("persistence mode is off: the first program waits for the driver, a second or more",
         "start nvidia-persistenced, or as root: nvidia-smi -pm 1");
  }
  if (device_.pcie_width > 0 && device_.pcie_width < device_.max_pcie_width) {
    note(fmt::format("PCIe with {} lanes of {}", device_.pcie_width, device_.max_pcie_width),
         "copies from and to the host are slower: is it in the right slot, and well seated?");
  }
}

}  // namespace

std::vector<CheckResult> check_gpu_device(const GpuDevice& device) {
  if (!device.problem.empty()) {
    return {{.name = fmt::format("GPU {}", device.index),
             .status = CheckStatus::Problem,
             .found = device.problem,
             .fix = "`dmesg | grep -i -e nvrm -e xid` says why; reset it (nvidia-smi --gpu-reset) "
                    "or reboot"}};
  }
  return DeviceChecks(device).run();
}

}  // namespace lockstep::doctor

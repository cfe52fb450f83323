#include "doctor/gpu_checks.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/process/cuda_needs.h"

namespace lockstep::doctor {

namespace {

using base::cuda_text;
using base::kNeededCuda;
using base::kNeededDriver;

// 91900 -> "9.19.0": how cuDNN 9 and NCCL count.
std::string version_text(int version) {
  return version == 0
             ? "of unknown version"
             : fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

std::string capability_text(int capability) {
  return fmt::format("{}.{}", capability / 10, capability % 10);
}

std::string capabilities_text(const std::vector<int>& capabilities) {
  std::string text;
  for (const int capability : capabilities) {
    text += (text.empty() ? "" : ", ") + capability_text(capability);
  }
  return text;
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue ..." if NVML tells no number.
std::string driver_name(const GpuDriver& driver) {
  const std::string by_module =
      driver.module_version.empty() ? "there is a GPU" : driver.module_version;
  return driver.version.empty() ? by_module : "driver " + driver.version;
}

struct CudaError {
  int number;
  const char* meaning;
  const char* fix;
};

// Those of cuInit that a machine's owner can do something about.
constexpr CudaError kCudaErrors[] = {
    {34, "libcuda.so.1 is the toolkit's stub, which stands in for the driver while linking",
     "take the folder `stubs` out of LD_LIBRARY_PATH"},
    {46, "the GPU is busy or unavailable",
     "another process has it for itself (compute mode); see `nvidia-smi`"},
    {100, "it finds no GPU that it may use",
     "does CUDA_VISIBLE_DEVICES name one? In a container: start it with its GPUs (--gpus all); in "
     "a batch job: ask the scheduler for GPUs"},
    {101, "CUDA_VISIBLE_DEVICES names a GPU that is not there", "see `nvidia-smi -L`"},
    {802, "the GPUs' NVLink switches are not set up yet",
     "start the fabric manager, of exactly the driver's version: systemctl start "
     "nvidia-fabricmanager"},
    {803, "the kernel's module and libcuda.so.1 are of different versions",
     "the driver was updated underneath: reboot, or reload its modules; in a container, use the "
     "host's libcuda.so.1"},
    {804, "this GPU does not take a libcuda.so.1 newer than its module (cuda-compat)",
     "take the compat folder out of LD_LIBRARY_PATH, and update the driver itself"},
    {999, "the driver fails without saying why",
     "usually /dev/nvidia-uvm: as root, nvidia-modprobe -u -c=0 (or modprobe nvidia-uvm); `dmesg | "
     "grep -i -e nvrm -e xid` says more"},
};

CheckResult judge_cuda_error(const GpuDriver& driver) {
  const auto known =
      std::find_if(std::begin(kCudaErrors), std::end(kCudaErrors),
                   [&](const CudaError& e) { return e.number == driver.cuda_error; });
  const bool is_known = known != std::end(kCudaErrors);
  CheckResult result{.name = "GPU driver", .status = CheckStatus::Problem};
  result.found =
      fmt::format("{}: CUDA does not start (error {}){}{}", driver_name(driver), driver.cuda_error,
                  is_known ? ": " : "", is_known ? known->meaning : "");
  result.fix = is_known ? known->fix : "`nvidia-smi` and `dmesg | grep -i -e nvrm -e xid` say more";
  const bool says_nothing = !is_known || driver.cuda_error == 999;
  if (says_nothing && !driver.has_uvm_file && !driver.is_other) {
    result.fix =
        "there is no /dev/nvidia-uvm: as root, nvidia-modprobe -u -c=0; in a container, "
        "start it with its GPUs (--gpus all)";
  }
  return result;
}

// What must be there before the driver can be asked; its `found` is empty if that is well.
CheckResult judge_driver_files(const GpuDriver& driver) {
  CheckResult result{.name = "GPU driver", .status = CheckStatus::Problem};
  const bool has_file = driver.has_device_file || driver.has_control_file;
  if (driver.is_other) {
    return {.name = "GPU driver"};
  }
  if (driver.module_version.empty() && !has_file) {
    result.status = CheckStatus::Note;
    result.found =
        fmt::format("none, though there is an NVIDIA GPU ({}): everything runs on the CPU",
                    fmt::join(driver.pci_gpus, ", "));
    result.fix = fmt::format(
        "to use it, install NVIDIA's driver ({} or newer); in a container, start it with its GPUs "
        "(--gpus all)",
        kNeededDriver);
  } else if (driver.module_version.empty()) {
    result.found = fmt::format("/dev/nvidia{} is there, but no driver is loaded",
                               driver.has_device_file ? "<N>" : "ctl");
    result.fix = "load it (modprobe nvidia) or install the driver of this kernel";
  } else if (!driver.has_device_file) {
    result.found = driver.module_version + ", but there is no /dev/nvidia<N>";
    result.fix =
        "in a container, start it with its GPUs (--gpus all); else, as root, "
        "nvidia-modprobe -c=0";
  }
  return result;
}

CheckResult judge_cuda(const GpuFacts& facts) {
  const GpuDriver& driver = facts.driver;
  CheckResult result{.name = "GPU driver", .status = CheckStatus::Problem};
  if (!driver.cuda_problem.empty()) {
    result.found =
        fmt::format("{}, but no program can use it: {}", driver_name(driver), driver.cuda_problem);
    result.fix =
        "install the driver's CUDA library (Debian: libcuda1); in a container, let the runtime "
        "bring it: NVIDIA_DRIVER_CAPABILITIES=compute,utility";
  } else if (driver.cuda_version > 0 && driver.cuda_version < kNeededCuda) {
    result.found =
        fmt::format("{}, which runs CUDA up to {}; this libtorch needs {}", driver_name(driver),
                    cuda_text(driver.cuda_version), cuda_text(kNeededCuda));
    result.fix = fmt::format(
        "install driver {} or newer; on a data-center GPU the package cuda-compat-13-0 does too",
        kNeededDriver);
  } else if (facts.has_visible && driver.cuda_devices == 0 &&
             (driver.cuda_error == 0 || driver.cuda_error == 100)) {
    result.status = CheckStatus::Note;
    result.found = fmt::format("{}; CUDA_VISIBLE_DEVICES={} leaves no GPU to see",
                               driver_name(driver), facts.visible);
    result.fix = "unset it, or name GPUs in it; `nvidia-smi -L` lists them";
  } else if (driver.cuda_error != 0) {
    result = judge_cuda_error(driver);
  } else {
    result.status = CheckStatus::Ok;
    result.found = fmt::format("{}, CUDA {}; a program sees {} GPU{}", driver_name(driver),
                               cuda_text(driver.cuda_version), driver.cuda_devices,
                               driver.cuda_devices == 1 ? "" : "s");
  }
  return result;
}

bool is_wanted(const GpuFacts& facts) {
  return facts.wanted != "cpu" && facts.driver.cuda_error == 0 && facts.driver.cuda_devices > 0;
}

CheckResult judge_torch(const GpuFacts& facts) {
  const GpuLibraries& libraries = facts.libraries;
  CheckResult result{.name = "libtorch_cuda", .status = CheckStatus::Problem};
  const std::string file = libraries.torch_folder + "/libtorch_cuda.so";
  if (libraries.torch_folder.empty()) {
    result.status = CheckStatus::Note;
    result.found = "unknown, since libtorch was not found: " + libraries.torch_problem;
  } else if (!libraries.has_torch_cuda) {
    result.status = is_wanted(facts) ? CheckStatus::Problem : CheckStatus::Note;
    result.found = fmt::format("not beside libtorch_cpu.so in {}: everything runs on the CPU",
                               libraries.torch_folder);
    result.fix = "this libtorch was installed without its CUDA part: LOCKSTEP_GPU=1 make setup";
  } else if (!libraries.torch_cuda_problem.empty()) {
    result.found = fmt::format("{}: {}", file, libraries.torch_cuda_problem);
    result.fix = "LOCKSTEP_GPU=1 make setup installs it anew";
  } else if (!libraries.missing.empty()) {
    result.found = fmt::format("{} needs {}, which the dynamic loader does not find", file,
                               fmt::join(libraries.missing, ", "));
    result.fix =
        "LOCKSTEP_GPU=1 make setup installs what it needs; or name the folder that has "
        "them in LD_LIBRARY_PATH";
  } else {
    result.status = CheckStatus::Ok;
    result.found = file;
  }
  return result;
}

// Empty if it is missing: then judge_torch() has said so.
std::vector<CheckResult> judge_library(const std::string& name, const GpuLibrary& library) {
  if (library.path.empty()) {
    return {};
  }
  CheckResult result{.name = name};
  result.found = fmt::format("{}, {}", version_text(library.version), library.path);
  if (!library.problem.empty()) {
    result.status = CheckStatus::Problem;
    result.found = fmt::format("{} cannot be loaded: {}", library.path, library.problem);
    result.fix = "LOCKSTEP_GPU=1 make setup installs it anew";
  }
  return {result};
}

std::vector<CheckResult> judge_cufile(const GpuLibraries& libraries) {
  std::vector<CheckResult> results = judge_library("cuFile", libraries.cufile);
  for (CheckResult& result : results) {
    if (result.status != CheckStatus::Ok) {
      result.status = CheckStatus::Note;  // it is about speed only
      continue;
    }
    const int version = libraries.cufile.version;  // 1150 is 1.15
    result.found =
        fmt::format("{}.{}, {}", version / 1000, version % 1000 / 10, libraries.cufile.path);
    if (libraries.nvidia_fs.empty()) {
      result.found += "; files go to the GPU through the host's memory";
      result.fix =
          "fine; the kernel module nvidia-fs (package nvidia-gds) would take them there "
          "directly";
    } else {
      result.found += fmt::format(" with nvidia-fs {}", libraries.nvidia_fs);
    }
  }
  return results;
}

// Machine code runs on later devices of the same generation, PTX on all later ones.
bool has_code_for(const GpuLibraries& libraries, int capability) {
  const auto& machine = libraries.plugin_architectures;
  const auto& ptx = libraries.plugin_ptx;
  return std::any_of(machine.begin(), machine.end(),
                     [&](int one) { return one / 10 == capability / 10 && one <= capability; }) ||
         std::any_of(ptx.begin(), ptx.end(), [&](int one) { return one <= capability; });
}

CheckResult judge_plugin_code(const GpuFacts& facts) {
  const GpuLibraries& libraries = facts.libraries;
  CheckResult result{.name = "GPU plug-in"};
  result.found = fmt::format("{}, version {}", libraries.plugin.path, libraries.plugin.version);
  if (libraries.plugin_architectures.empty() && libraries.plugin_ptx.empty()) {
    return result;
  }
  result.found +=
      fmt::format(", for compute capability {}", capabilities_text(libraries.plugin_architectures));
  for (const GpuDevice& device : facts.devices) {
    if (device.capability > 0 && !has_code_for(libraries, device.capability)) {
      result.status = CheckStatus::Problem;
      result.found += fmt::format("; GPU {} ({}) has {}", device.index, device.name,
                                  capability_text(device.capability));
      result.fix = fmt::format(
          "build it for this GPU too: cmake --preset release "
          "-DLOCKSTEP_CUDA_ARCHITECTURES=\"{};{}\"",
          fmt::join(libraries.plugin_architectures, ";"), device.capability);
    }
  }
  return result;
}

CheckResult judge_plugin(const GpuFacts& facts, int plugin_version) {
  const GpuLibrary& plugin = facts.libraries.plugin;
  CheckResult result{.name = "GPU plug-in", .status = CheckStatus::Problem};
  if (plugin.path.empty()) {
    result.status = CheckStatus::Note;
    result.found =
        "none: liblockstep_cuda.so is neither beside lockstep-torch nor in ../lib/lockstep; "
        "everything works, more slowly";
    result.fix = "it is built where CMake finds nvcc: `make test` fetches one; then make build";
  } else if (!plugin.problem.empty()) {
    result.found = fmt::format("{}: {}", plugin.path, plugin.problem);
    result.fix =
        "build it again with this lockstep, or unset LOCKSTEP_CUDA_PLUGIN if that names it";
  } else if (plugin.version == 0) {
    result = judge_plugin_code(facts);
    result.found =
        fmt::format("{}, which can be asked no more while libtorch has no CUDA part", plugin.path);
  } else if (plugin.version != plugin_version) {
    result.found = fmt::format("{} is of version {}, this lockstep needs {}", plugin.path,
                               plugin.version, plugin_version);
    result.fix = "build both together: make build";
  } else {
    result = judge_plugin_code(facts);
  }
  return result;
}

std::string level_text(int level) {
  switch (level) {
    case 0:
      return "on one board";
    case 10:
    case 20:
      return "over a PCIe switch";
    case 30:
      return "over a PCIe host bridge";
    case 40:
      return "inside a NUMA node";
    case 50:
      return "across NUMA nodes";
    default:
      return "in an unknown way";
  }
}

}  // namespace

std::vector<CheckResult> check_gpu_driver(const GpuFacts& facts) {
  CheckResult files = judge_driver_files(facts.driver);
  if (!files.found.empty()) {
    return {files};
  }
  if (!facts.probe_problem.empty()) {
    return {{.name = "GPU driver",
             .status = CheckStatus::Problem,
             .found = fmt::format("{}, whose libraries cannot be asked: {}",
                                  driver_name(facts.driver), facts.probe_problem),
             .fix = "does `nvidia-smi` answer? If not, `dmesg | grep -i -e nvrm -e xid` says why; "
                    "reset the GPU (nvidia-smi --gpu-reset) or reboot"}};
  }
  std::vector<CheckResult> results{judge_cuda(facts)};
  if (!facts.driver.nvml_problem.empty()) {
    const bool is_mismatch = facts.driver.nvml_problem.find("mismatch") != std::string::npos;
    results.push_back(
        {.name = "NVML",
         .status = CheckStatus::Note,
         .found = facts.driver.nvml_problem + ": the GPUs' health is unknown",
         .fix = is_mismatch ? "the driver was updated underneath: reboot, or reload its modules"
                            : "install the driver's management library (Debian: libnvidia-ml1); in "
                              "a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility"});
  }
  return results;
}

std::vector<CheckResult> check_gpu_libraries(const GpuFacts& facts, int plugin_version) {
  std::vector<CheckResult> results{judge_torch(facts)};
  for (const auto& more :
       {judge_library("cuDNN", facts.libraries.cudnn), judge_library("NCCL", facts.libraries.nccl),
        judge_cufile(facts.libraries)}) {
    results.insert(results.end(), more.begin(), more.end());
  }
  results.push_back(judge_plugin(facts, plugin_version));
  return results;
}

CheckResult check_gpu_links(const GpuFacts& facts) {
  CheckResult result{.name = "GPU links"};
  std::vector<std::string> others, closed;
  for (const GpuLink& link : facts.links) {
    const std::string pair = fmt::format("{}-{}", link.from, link.to);
    if (link.nvlink != 0) {
      others.push_back(fmt::format("{} {}", pair, level_text(link.level)));
    }
    if (link.peer_read > 0) {
      closed.push_back(pair);
    }
  }
  const size_t num_pairs = facts.links.size(), num_nvlink = num_pairs - others.size();
  result.found = fmt::format("{} of {} pairs by NVLink", num_nvlink, num_pairs);
  if (!others.empty()) {
    result.found += fmt::format("; {}", fmt::join(others, ", "));
  }
  if (!closed.empty()) {
    result.status = CheckStatus::Note;
    result.found += fmt::format("; no direct copies: {}", fmt::join(closed, ", "));
    result.fix =
        "copies between these go through the host's memory: see \"GPU Direct\" in NCCL's "
        "troubleshooting guide (IOMMU and ACS off on bare metal)";
  }
  return result;
}

namespace {

// Of a machine that has one, or a trace of one.
std::vector<CheckResult> check_present_gpus(const GpuFacts& facts, int plugin_version) {
  std::vector<CheckResult> results = check_gpu_driver(facts);
  const bool is_asked = judge_driver_files(facts.driver).found.empty();
  if (is_asked) {  // none if NVML was the one that failed
    for (const GpuDevice& device : facts.devices) {
      for (CheckResult& result : check_gpu_device(device)) {
        results.push_back(std::move(result));
      }
    }
    if (!facts.links.empty()) {
      results.push_back(check_gpu_links(facts));
    }
  }
  if (is_asked) {
    for (CheckResult& result : check_gpu_libraries(facts, plugin_version)) {
      results.push_back(std::move(result));
    }
  }
  return results;
}

}  // namespace

std::vector<CheckResult> check_gpus(const GpuFacts& facts, int plugin_version) {
  if (!facts.has_gpu()) {
    return {{.name = "GPU", .found = "none: everything runs on the CPU"}};
  }
  std::vector<CheckResult> results = check_present_gpus(facts, plugin_version);
  if (facts.wanted == "cpu") {
    for (CheckResult& result : results) {
      if (result.status == CheckStatus::Problem) {
        result.status = CheckStatus::Note;  // no program meets it
      }
    }
    results.push_back({.name = "GPU",
                       .status = CheckStatus::Note,
                       .found = "LOCKSTEP_DEVICE=cpu: programs leave the GPU alone",
                       .fix = "fine if it is meant; unset it to use the GPU"});
  }
  return results;
}

}  // namespace lockstep::doctor

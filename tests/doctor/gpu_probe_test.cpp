// The doctor asks libraries that play a driver and a libtorch, loaded as the real ones are.

#include "doctor/gpu_probe.h"

#include <cstring>
#include <elf.h>
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/process/process.h"
#include "base/unique_fd.h"
#include "doctor/gpu_checks.h"
#include "doctor/gpu_json.h"
#include "support/job.h"
#include "support/paths.h"

namespace lockstep::doctor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

const std::string kDriver = testing_support::in_build("doctor_fakes/driver");
const std::string kTorch = testing_support::in_build("doctor_fakes/torch");

class GpuProbe : public ::testing::Test {
 protected:
  // A machine that has a driver, as far as files tell.
  GpuProbe() {
    file("/proc/driver/nvidia/version",
         "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05\nGCC version:  gcc 12\n");
    for (const char* name : {"nvidia0", "nvidiactl", "nvidia-uvm"}) {
      file(std::string("/dev/") + name);
    }
    file("/sys/bus/pci/devices/0000:1c:00.0/numa_node", "1\n");
    file("/sys/bus/pci/devices/0000:1c:00.0/vendor", "0x10de\n");
    file("/sys/bus/pci/devices/0000:1c:00.0/class", "0x030200\n");
    file("/sys/bus/pci/devices/0000:1d:00.0/vendor", "0x10de\n");
    file("/sys/bus/pci/devices/0000:1d:00.0/class", "0x068000\n");  // an NVLink switch
    file("/sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n");
    file("/sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n");
  }

  void file(const std::string& path, const std::string& text = "") {
    fs::create_directories(fs::path(root_.path() + path).parent_path());
    base::write_file_atomically(root_.path() + path, text);
  }

  // What is found on the machine if FAKE_NVML and the rest of the environment are these.
  GpuFacts probe(std::map<std::string, std::string> env = {},
                 const std::string& program = kTorch + "/program",
                 std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    env.try_emplace("LD_LIBRARY_PATH", kDriver);
    const base::Output output =
        base::run_process({.argv = {testing_support::in_build("doctor_probe"), root_.path(),
                                    program, std::to_string(timeout.count())},
                           .env = std::move(env)},
                          base::Deadline::after(test::kPatience));
    EXPECT_TRUE(output.status.ok()) << output.status.text() << output.err;
    return facts_from_json(output.out);
  }

  test::TempFolder root_;
};

TEST_F(GpuProbe, AsksTheDriver) {
  const GpuFacts facts = probe({{"CUDA_VISIBLE_DEVICES", ""}, {"LOCKSTEP_DEVICE", "cuda"}});
  EXPECT_EQ(facts.probe_problem, "");
  EXPECT_TRUE(facts.has_visible);
  EXPECT_EQ(facts.wanted, "cuda");
  EXPECT_EQ(facts.driver.nvml_problem, "");
  EXPECT_EQ(facts.driver.version, "580.95.05");
  EXPECT_THAT(facts.driver.module_version, HasSubstr("580.95.05"));
  EXPECT_EQ(facts.driver.cuda_problem, "");
  EXPECT_EQ(facts.driver.cuda_version, 13010);
  EXPECT_EQ(facts.driver.cuda_error, 0);
  EXPECT_EQ(facts.driver.cuda_devices, 2);
  EXPECT_TRUE(facts.driver.has_uvm_file);
  EXPECT_THAT(facts.driver.pci_gpus, ElementsAre("0000:1c:00.0"));
}

TEST_F(GpuProbe, AsksEveryDevice) {
  const GpuFacts facts = probe();
  ASSERT_EQ(facts.devices.size(), 2u);
  const GpuDevice& first = facts.devices[0];
  const GpuDevice& second = facts.devices[1];
  EXPECT_EQ(first.name, "NVIDIA H200");
  EXPECT_EQ(second.name, "NVIDIA A100");
  EXPECT_EQ(second.uuid, "GPU-bb");
  EXPECT_EQ(first.pci_address, "0000:1b:00.0");
  EXPECT_EQ(second.pci_address, "0000:1c:00.0");
  EXPECT_EQ(first.numa_node, kUnknown);
  EXPECT_EQ(second.numa_node, 1);
  EXPECT_EQ(second.memory_total_bytes, 150000000001u);
  EXPECT_EQ(second.memory_free_bytes, 140000000000u);
  EXPECT_EQ(first.capability, 90);
  EXPECT_EQ(second.capability, 80);
  EXPECT_EQ(first.sm_clock_mhz, 1410);
  EXPECT_EQ(first.max_sm_clock_mhz, 1980);
  EXPECT_EQ(first.clock_reasons, 0x40u) << "by the function's older name";
  EXPECT_EQ(first.temperature_c, 88);
  EXPECT_EQ(first.power_mw, 76900);
  EXPECT_EQ(first.power_limit_mw, 600000);
  EXPECT_EQ(first.power_default_mw, 700000);
  EXPECT_EQ(first.persistence, 1);
  EXPECT_EQ(second.compute_mode, 3);
  EXPECT_EQ(first.mig, 0);
  EXPECT_EQ(second.mig, kUnknown) << "not supported";
  EXPECT_EQ(first.ecc, 1);
  EXPECT_EQ(first.ecc_corrected, 12) << "since the driver was loaded, not ever";
  EXPECT_EQ(first.ecc_uncorrected, 0);
  EXPECT_EQ(second.ecc_uncorrected, 1);
  EXPECT_EQ(first.pages_pending, 1);
  EXPECT_EQ(first.remap_failed, 0);
  EXPECT_EQ(first.pcie_width, 8);
  EXPECT_EQ(first.max_pcie_width, 16);
  EXPECT_EQ(first.pcie_generation, kUnknown) << "this driver has no such function";
  ASSERT_EQ(first.processes.size(), 40u) << "more than there was room for at first";
  EXPECT_EQ(first.processes[0].memory_bytes, 0u) << "not told";
  EXPECT_EQ(first.processes[39].pid, 139);
  EXPECT_EQ(first.processes[39].memory_bytes, 39000u);
  EXPECT_THAT(second.processes, IsEmpty());
  ASSERT_EQ(facts.links.size(), 1u);
  EXPECT_EQ(facts.links[0].to, 1);
  EXPECT_EQ(facts.links[0].level, 40);
  EXPECT_EQ(facts.links[0].nvlink, 5);
  EXPECT_EQ(facts.links[0].peer_read, 0);
}

TEST_F(GpuProbe, ALostDeviceIsNamedAndTheOtherAsked) {
  const GpuFacts facts = probe({{"FAKE_NVML", "lost"}});
  ASSERT_EQ(facts.devices.size(), 2u);
  EXPECT_EQ(facts.devices[0].problem, "");
  EXPECT_EQ(facts.devices[1].problem, "GPU is lost");
  EXPECT_THAT(facts.links, IsEmpty());
}

TEST_F(GpuProbe, ADriverThatDoesNotWorkSaysWhy) {
  const GpuFacts facts = probe({{"FAKE_NVML", "mismatch"}, {"FAKE_CUDA", "803"}});
  EXPECT_EQ(facts.driver.nvml_problem, "Driver/library version mismatch");
  EXPECT_THAT(facts.devices, IsEmpty());
  EXPECT_EQ(facts.driver.cuda_error, 803);
  EXPECT_EQ(facts.driver.cuda_devices, 0);
}

TEST_F(GpuProbe, NoDriverIsSaidByTheNamesOfItsLibraries) {
  if (std::filesystem::exists("/proc/driver/nvidia/version")) {
    GTEST_SKIP() << "this machine has a driver";
  }
  const GpuFacts none = probe({{"LD_LIBRARY_PATH", ""}});
  EXPECT_THAT(none.driver.nvml_problem, HasSubstr("libnvidia-ml.so.1"));
  EXPECT_THAT(none.driver.cuda_problem, HasSubstr("libcuda.so.1"));
}

// A broken GPU makes the driver hang; the doctor must not.
TEST_F(GpuProbe, ADriverThatHangsOrCrashesIsAFinding) {
  const GpuFacts hung =
      probe({{"FAKE_NVML", "hang"}}, kTorch + "/program", std::chrono::milliseconds(300));
  EXPECT_THAT(hung.probe_problem, HasSubstr("NVML does not answer within"));
  EXPECT_TRUE(hung.libraries.has_torch_cuda) << "what files tell is known all the same";
  const GpuFacts crashed = probe({{"FAKE_NVML", "crash"}});
  EXPECT_THAT(crashed.probe_problem,
              AllOf(HasSubstr("NVML ended the process"), HasSubstr("SIGABRT")));
  EXPECT_EQ(crashed.libraries.cudnn.version, 0) << "nothing is asked after the driver";
}

TEST_F(GpuProbe, AProcessThatCannotBeReapedDoesNotHoldTheDoctorUp) {
  const GpuFacts stuck =
      probe({{"FAKE_NVML", "stuck"}}, kTorch + "/program", std::chrono::milliseconds(300));
  EXPECT_THAT(stuck.probe_problem, HasSubstr("does not answer within"));
}

// A torn file is no broken driver.
TEST_F(GpuProbe, ALibraryThatCrashesOrHangsIsItsOwnFinding) {
  const GpuFacts crashed = probe({{"FAKE_CRASH", "cudnn"}});
  EXPECT_EQ(crashed.probe_problem, "");
  EXPECT_EQ(crashed.devices.size(), 2u);
  EXPECT_EQ(crashed.driver.cuda_devices, 2);
  EXPECT_THAT(crashed.libraries.cudnn.problem, HasSubstr("SIGABRT"));
  EXPECT_EQ(crashed.libraries.nccl.version, 22809) << "the next ones are asked all the same";
  EXPECT_EQ(crashed.libraries.plugin.version, 4);
  const GpuFacts hung =
      probe({{"FAKE_HANG", "nccl"}}, kTorch + "/program", std::chrono::milliseconds(1500));
  EXPECT_EQ(hung.probe_problem, "");
  EXPECT_EQ(hung.libraries.cudnn.version, 91900);
  EXPECT_THAT(hung.libraries.nccl.problem, HasSubstr("does not answer within"));
  EXPECT_EQ(hung.libraries.cufile.version, 1150);
}

TEST_F(GpuProbe, TheToolkitsStubIsKnownByItsError) {
  const GpuFacts facts = probe({{"FAKE_CUDA", "34"}});
  EXPECT_EQ(facts.driver.cuda_error, 34);
  EXPECT_EQ(facts.driver.cuda_version, 0);
  EXPECT_THAT(checks_table(check_gpu_driver(facts)), HasSubstr("the toolkit's stub"));
}

TEST_F(GpuProbe, AContainersGpuNeedNotBeNumberZero) {
  fs::rename(root_.path() + "/dev/nvidia0", root_.path() + "/dev/nvidia3");
  const GpuFacts facts = probe();
  EXPECT_TRUE(facts.driver.has_device_file);
  EXPECT_EQ(facts.devices.size(), 2u);
  EXPECT_THAT(checks_table(check_gpu_driver(facts)), HasSubstr("a program sees 2 GPUs"));
}

TEST_F(GpuProbe, AGpuOfWindowsIsNotAskedUnlessItIsNvidias) {
  const test::TempFolder windows;
  const auto has_gpu = [&] {
    return probe_gpus({.root = windows.path(), .torch_program = "/no/program"}).has_gpu();
  };
  const std::string library = windows.path() + "/usr/lib/wsl/lib/libcuda.so.1";
  fs::create_directories(windows.path() + "/dev");
  base::write_file_atomically(windows.path() + "/dev/dxg", "");
  EXPECT_FALSE(has_gpu());
  fs::create_directories(fs::path(library).parent_path());
  base::write_file_atomically(library, "");
  EXPECT_TRUE(read_driver(windows.path()).is_other);
}

TEST_F(GpuProbe, FindsWhatIsBesideLibtorch) {
  const GpuLibraries found = probe().libraries;
  EXPECT_EQ(found.torch_folder, kTorch);
  EXPECT_TRUE(found.has_torch_cuda);
  EXPECT_THAT(found.missing, IsEmpty());
  EXPECT_EQ(found.cudnn.path, kTorch + "/libcudnn.so.9");
  EXPECT_EQ(found.cudnn.version, 91900);
  EXPECT_EQ(found.nccl.version, 22809);
  EXPECT_EQ(found.cufile.version, 1150);
  EXPECT_EQ(found.nvidia_fs, "");
  EXPECT_EQ(found.plugin.path, kTorch + "/liblockstep_cuda.so");
  EXPECT_EQ(found.plugin.version, 4);
  EXPECT_EQ(found.plugin.problem, "");
  file("/proc/driver/nvidia-fs/version", "2.19\n");
  EXPECT_EQ(probe().libraries.nvidia_fs, "2.19") << "an older module tells it there";
  fs::remove_all(root_.path() + "/proc/driver/nvidia-fs");
  file("/sys/module/nvidia_fs/version", "2.26.6\n");
  EXPECT_EQ(probe().libraries.nvidia_fs, "2.26.6");
}

TEST_F(GpuProbe, NamesWhatIsMissingThere) {
  fs::copy(kTorch, root_.path() + "/opt");
  fs::remove(root_.path() + "/opt/liblockstep_fake.so.7");  // which no host has elsewhere
  fs::remove(root_.path() + "/opt/liblockstep_cuda.so");
  const std::string program = root_.path() + "/opt/program";
  const std::map<std::string, std::string> env{{"LD_LIBRARY_PATH", root_.path() + "/opt"}};
  GpuLibraries found = probe(env, program).libraries;
  EXPECT_THAT(found.missing, ElementsAre("liblockstep_fake.so.7"));
  EXPECT_EQ(found.cudnn.path, root_.path() + "/opt/libcudnn.so.9");
  EXPECT_EQ(found.plugin.path, "");
  fs::remove(root_.path() + "/opt/libtorch_cuda.so");
  found = probe(env, program).libraries;
  EXPECT_FALSE(found.has_torch_cuda);
  EXPECT_EQ(found.torch_problem, "");
  EXPECT_THAT(probe(env, "/bin/sh").libraries.torch_problem, HasSubstr("does not link libtorch"));
}

TEST_F(GpuProbe, ThePlugInThatTheEnvironmentNames) {
  const auto plugin = [&](const std::string& path) {
    return probe({{"LOCKSTEP_CUDA_PLUGIN", path}}).libraries.plugin;
  };
  EXPECT_EQ(plugin("/no/plugin.so").problem, "there is no such file");
  EXPECT_THAT(plugin(kDriver + "/libcuda.so.1").problem, HasSubstr("it has no fake_plugin"));
  file("/plugin.so", std::string(1000, 'x'));
  EXPECT_THAT(plugin(root_.path() + "/plugin.so").problem, HasSubstr("invalid ELF header"));
}

TEST_F(GpuProbe, AMachineWithoutAGpuIsNotAsked) {
  const test::TempFolder bare;
  const GpuFacts facts = probe_gpus({.root = bare.path(), .torch_program = "/no/program"});
  EXPECT_FALSE(facts.has_gpu());
  EXPECT_EQ(facts.driver.cuda_problem, "not asked");
  EXPECT_EQ(facts.libraries.torch_problem, "");
}

// A library with a section .nv_fatbin and nothing else, as nvcc writes it.
struct Entry {
  uint16_t kind;  // 1: PTX, 2: machine code
  uint32_t architecture;
};

template <typename Number>
void append(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

std::string container(const std::vector<Entry>& entries) {
  std::string body;
  for (const Entry& entry : entries) {
    append<uint16_t>(body, entry.kind);
    append<uint16_t>(body, 0x101);
    append<uint32_t>(body, 64);
    append<uint64_t>(body, 24);
    append<uint32_t>(body, 0);
    append<uint32_t>(body, 0);
    append<uint16_t>(body, 8);
    append<uint16_t>(body, 1);
    append<uint32_t>(body, entry.architecture);
    body.append(64 - 32 + 24, 'k');
  }
  std::string bytes;
  append<uint32_t>(bytes, 0xba55ed50);
  append<uint16_t>(bytes, 1);
  append<uint16_t>(bytes, 16);
  append<uint64_t>(bytes, body.size());
  return bytes + body;
}

std::string library_with(const std::string& section) {
  const std::string names = std::string("\0.nv_fatbin\0.nv_fatbinary\0", 25);
  Elf64_Ehdr head{};
  std::memcpy(head.e_ident, ELFMAG, SELFMAG);
  head.e_ident[EI_CLASS] = ELFCLASS64;
  head.e_shoff = sizeof head;
  head.e_shentsize = sizeof(Elf64_Shdr);
  head.e_shnum = 3;
  head.e_shstrndx = 2;
  Elf64_Shdr sections[3] = {};
  sections[1].sh_name = 1;
  sections[1].sh_offset = sizeof head + sizeof sections;
  sections[1].sh_size = section.size();
  sections[2].sh_offset = sections[1].sh_offset + section.size();
  sections[2].sh_size = names.size();
  std::string bytes;
  append(bytes, head);
  bytes.append(reinterpret_cast<const char*>(sections), sizeof sections);
  return bytes + section + names;
}

class GpuCodeOf : public GpuProbe {
 protected:
  std::string code(const std::string& bytes) {
    file("/library.so", bytes);
    const GpuCode found = read_gpu_code(root_.path() + "/library.so");
    return fmt::format("{}|{}", fmt::join(found.machine, ","), fmt::join(found.ptx, ","));
  }
};

TEST_F(GpuCodeOf, ALibraryIsWhatItsContainersShare) {
  const std::string stub = container({{2, 75}});  // which linking adds
  const std::string kernels = container({{2, 80}, {2, 90}, {1, 90}});
  EXPECT_EQ(code(library_with(stub + kernels + std::string(8, '\0') + kernels)), "80,90|90");
  EXPECT_EQ(code(library_with(kernels)), "80,90|90");
  EXPECT_EQ(code(library_with("")), "|");
}

TEST_F(GpuCodeOf, ATornOneEndsTheReading) {
  const std::string whole = library_with(container({{2, 80}, {2, 90}}));
  for (size_t size = 0; size < whole.size(); size += 7) {
    code(whole.substr(0, size));  // under AddressSanitizer: nothing past the end is read
  }
  std::string huge = container({{2, 80}, {2, 90}});
  huge.replace(8, 8, std::string(8, '\xff'));
  EXPECT_EQ(code(library_with(huge)), "|");
  std::string endless = container({{2, 80}, {2, 90}});
  endless.replace(16 + 88 + 4, 4, std::string(4, '\0'));  // an entry of no bytes
  EXPECT_EQ(code(library_with(endless)), "80|");
  EXPECT_EQ(code("no library"), "|");
  EXPECT_EQ(read_gpu_code("/no/file").machine.size(), 0u);
}

}  // namespace
}  // namespace lockstep::doctor

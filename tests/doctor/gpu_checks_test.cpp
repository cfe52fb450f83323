// Tables of made-up machines, and what the doctor says of them.

#include "doctor/gpu_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "doctor/gpu_json.h"

namespace lockstep::doctor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kPluginVersion = 4;
constexpr uint64_t kGiB = 1u << 30;

GpuDevice h200(int index) {
  return {.index = index,
          .name = "NVIDIA H200",
          .uuid = "GPU-5f" + std::to_string(index),
          .pci_address = "0000:1b:00.0",
          .numa_node = 1,
          .memory_total_bytes = 140 * kGiB,
          .memory_free_bytes = 139 * kGiB,
          .capability = 90,
          .sm_clock_mhz = 345,
          .max_sm_clock_mhz = 1980,
          .temperature_c = 31,
          .clock_reasons = 0x1,  // idle
          .power_mw = 76900,
          .power_limit_mw = 700000,
          .power_default_mw = 700000,
          .persistence = 1,
          .compute_mode = 0,
          .mig = 0,
          .ecc = 1,
          .ecc_corrected = 3,
          .ecc_uncorrected = 0,
          .pages_pending = 0,
          .remap_failed = 0,
          .pcie_generation = 1,
          .max_pcie_generation = 5,
          .pcie_width = 16,
          .max_pcie_width = 16};
}

GpuFacts healthy() {
  GpuFacts facts;
  facts.driver = {.module_version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05",
                  .has_device_file = true,
                  .has_control_file = true,
                  .has_uvm_file = true,
                  .pci_gpus = {"0000:1b:00.0"},
                  .nvml_problem = "",
                  .version = "580.95.05",
                  .cuda_problem = "",
                  .cuda_version = 13000,
                  .cuda_devices = 1};
  facts.libraries.torch_folder = "/opt/torch/lib";
  facts.libraries.has_torch_cuda = true;
  facts.libraries.cudnn = {.path = "/opt/nvidia/libcudnn.so.9", .version = 91900};
  facts.libraries.nccl = {.path = "/opt/nvidia/libnccl.so.2", .version = 22809};
  facts.libraries.cufile = {.path = "/opt/nvidia/libcufile.so.0", .version = 1150};
  facts.libraries.plugin = {.path = "/opt/bin/liblockstep_cuda.so", .version = kPluginVersion};
  facts.libraries.plugin_architectures = {80, 90, 100};
  facts.devices = {h200(0)};
  return facts;
}

// The lines that are not ok, as the table shows them.
std::string troubles(const GpuFacts& facts) {
  std::vector<CheckResult> bad = check_gpus(facts, kPluginVersion);
  std::erase_if(bad, [](const CheckResult& check) { return check.status == CheckStatus::Ok; });
  for (const CheckResult& check : bad) {
    EXPECT_FALSE(check.fix.empty()) << check.found;
  }
  return checks_table(bad);
}

bool is_problem(const GpuFacts& facts) {
  return !is_healthy(check_gpus(facts, kPluginVersion));
}

// Of a machine with one device, changed.
std::string device_troubles(void (*change)(GpuDevice&)) {
  GpuFacts facts = healthy();
  change(facts.devices[0]);
  return troubles(facts);
}

bool is_device_problem(void (*change)(GpuDevice&)) {
  GpuFacts facts = healthy();
  change(facts.devices[0]);
  return is_problem(facts);
}

TEST(GpuChecks, AMachineWithoutAGpuIsOneCalmLine) {
  EXPECT_EQ(checks_table(check_gpus({}, kPluginVersion)),
            "ok       GPU  none: everything runs on the CPU\n");
}

TEST(GpuChecks, AHealthyMachineHasNothingToMend) {
  const auto checks = check_gpus(healthy(), kPluginVersion);
  EXPECT_EQ(troubles(healthy()), "");
  const std::string table = checks_table(checks);
  EXPECT_THAT(table, HasSubstr("driver 580.95.05, CUDA 13.0; a program sees 1 GPU\n"));
  EXPECT_THAT(table, HasSubstr("NVIDIA H200, 140.0 GiB, 139.0 free, compute capability 9.0, 345 of "
                               "1980 MHz, 76 of 700 W, PCI 0000:1b:00.0, NUMA node 1\n"));
  EXPECT_THAT(table, HasSubstr("9.19.0, /opt/nvidia/libcudnn.so.9"));
  EXPECT_THAT(table, HasSubstr("2.28.9, /opt/nvidia/libnccl.so.2"));
  EXPECT_THAT(table, HasSubstr("/opt/bin/liblockstep_cuda.so, version 4, for compute capability "
                               "8.0, 9.0, 10.0"));
  EXPECT_THAT(table, HasSubstr("1.15, /opt/nvidia/libcufile.so.0; files go to the GPU through"));
  GpuFacts direct = healthy();
  direct.libraries.nvidia_fs = "2.26.6";
  EXPECT_THAT(checks_table(check_gpus(direct, kPluginVersion)), HasSubstr("with nvidia-fs 2.26.6"));
}

TEST(GpuChecks, AGpuWithoutADriver) {
  GpuFacts facts;
  facts.driver.pci_gpus = {"0000:01:00.0"};
  EXPECT_THAT(troubles(facts), AllOf(HasSubstr("there is an NVIDIA GPU (0000:01:00.0)"),
                                     HasSubstr("580.65.06"), HasSubstr("--gpus all")));
  EXPECT_FALSE(is_problem(facts)) << "programs run, on the CPU";
  EXPECT_EQ(check_gpus(facts, kPluginVersion).size(), 1u) << "the rest follows from it";
  facts.driver.has_device_file = true;
  EXPECT_THAT(troubles(facts), HasSubstr("/dev/nvidia<N> is there, but no driver is loaded"));
  EXPECT_TRUE(is_problem(facts));
  facts.driver.module_version = "NVRM version: 580";
  facts.driver.has_device_file = false;
  EXPECT_THAT(troubles(facts), AllOf(HasSubstr("NVRM version: 580, but there is no /dev/nvidia<N>"),
                                     HasSubstr("--gpus all")));
}

TEST(GpuChecks, ADriverThatIsTooOld) {
  GpuFacts facts = healthy();
  facts.driver.version = "550.54.15";
  facts.driver.cuda_version = 12040;
  EXPECT_THAT(troubles(facts),
              AllOf(HasSubstr("driver 550.54.15, which runs CUDA up to 12.4; this libtorch needs "
                              "13.0"),
                    HasSubstr("580.65.06"), HasSubstr("cuda-compat-13-0")));
  EXPECT_TRUE(is_problem(facts));
  facts.driver.cuda_version = 13010;
  EXPECT_EQ(troubles(facts), "");
}

TEST(GpuChecks, ADriverThatCannotBeUsed) {
  GpuFacts facts = healthy();
  facts.driver.cuda_problem = "libcuda.so.1: cannot open shared object file";
  EXPECT_THAT(troubles(facts), AllOf(HasSubstr("no program can use it: libcuda.so.1: cannot"),
                                     HasSubstr("libcuda1"), HasSubstr("compute,utility")));
  const std::pair<int, const char*> cases[] = {{34, "stub"},
                                               {802, "fabric manager"},
                                               {803, "reboot"},
                                               {804, "compat folder"},
                                               {999, "nvidia-modprobe -u"}};
  for (const auto& [error, fix] : cases) {
    facts = healthy();
    facts.driver.cuda_error = error;
    facts.driver.cuda_devices = 0;
    EXPECT_THAT(troubles(facts),
                AllOf(HasSubstr("(error " + std::to_string(error) + "): "), HasSubstr(fix)));
    EXPECT_TRUE(is_problem(facts));
  }
  facts.driver.cuda_error = 719;  // one that we know nothing of
  EXPECT_THAT(troubles(facts), AllOf(HasSubstr("(error 719)"), HasSubstr("dmesg")));
  facts.driver.has_uvm_file = false;
  EXPECT_THAT(troubles(facts), HasSubstr("there is no /dev/nvidia-uvm"));
}

TEST(GpuChecks, AHiddenGpuIsSaidToBeHidden) {
  GpuFacts facts = healthy();
  facts.driver.cuda_error = 100;
  facts.driver.cuda_devices = 0;
  EXPECT_THAT(troubles(facts), HasSubstr("it finds no GPU that it may use"));
  EXPECT_TRUE(is_problem(facts));
  facts.has_visible = true;
  EXPECT_THAT(troubles(facts), HasSubstr("CUDA_VISIBLE_DEVICES= leaves no GPU to see"));
  EXPECT_FALSE(is_problem(facts));
  facts = healthy();
  facts.wanted = "cpu";
  facts.libraries.has_torch_cuda = false;
  EXPECT_THAT(troubles(facts), HasSubstr("LOCKSTEP_DEVICE=cpu: programs leave the GPU alone"));
  EXPECT_FALSE(is_problem(facts)) << "what is not wanted need not be complete";
}

// A container for the CPU, on a host with a GPU.
TEST(GpuChecks, ABrokenDriverThatNoProgramMeetsIsNoProblem) {
  GpuFacts facts = healthy();
  facts.driver.has_device_file = false;
  EXPECT_TRUE(is_problem(facts));
  facts.wanted = "cpu";
  EXPECT_THAT(troubles(facts), HasSubstr("note     GPU driver  NVRM version"));
  EXPECT_FALSE(is_problem(facts));
  facts = healthy();
  facts.wanted = "cpu";
  facts.devices[0].ecc_uncorrected = 1;
  EXPECT_THAT(troubles(facts), HasSubstr("note     GPU 0  1 memory error"));
  EXPECT_FALSE(is_problem(facts));
}

TEST(GpuChecks, AGpuOfWindowsWithoutALibrary) {
  GpuFacts facts = healthy();
  facts.driver = {.is_other = true, .nvml_problem = ""};
  facts.driver.cuda_problem = "libcuda.so.1: cannot open shared object file";
  EXPECT_THAT(troubles(facts),
              HasSubstr("PROBLEM  GPU driver  there is a GPU, but no program can use it"));
}

TEST(GpuChecks, ADriverThatHangs) {
  GpuFacts facts = healthy();
  facts.devices.clear();
  facts.probe_problem = "they do not answer within 30 s";
  EXPECT_THAT(troubles(facts), AllOf(HasSubstr("cannot be asked: they do not answer within 30 s"),
                                     HasSubstr("xid"), Not(HasSubstr("CUDA 13.0"))));
  EXPECT_TRUE(is_problem(facts));
}

TEST(GpuChecks, WithoutNvmlHealthIsUnknown) {
  GpuFacts facts = healthy();
  facts.devices.clear();
  facts.driver.version.clear();
  facts.driver.nvml_problem = "libnvidia-ml.so.1: cannot open shared object file";
  EXPECT_THAT(troubles(facts), AllOf(HasSubstr("note     NVML"), HasSubstr("health is unknown"),
                                     HasSubstr("libnvidia-ml1")));
  EXPECT_FALSE(is_problem(facts));
  EXPECT_THAT(checks_table(check_gpus(facts, kPluginVersion)),
              HasSubstr("Kernel Module  580.95.05, CUDA 13.0; a program sees 1 GPU"));
  facts.driver.nvml_problem = "Driver/library version mismatch";
  EXPECT_THAT(troubles(facts), HasSubstr("reboot"));
}

TEST(GpuChecks, LibtorchWithoutItsCudaPart) {
  GpuFacts facts = healthy();
  facts.libraries.has_torch_cuda = false;
  facts.libraries.cudnn = facts.libraries.nccl = facts.libraries.cufile = {};
  facts.libraries.plugin.version = 0;  // which cannot be loaded either
  EXPECT_THAT(troubles(facts),
              AllOf(HasSubstr("PROBLEM  libtorch_cuda  not beside libtorch_cpu.so in "
                              "/opt/torch/lib: everything runs on the CPU"),
                    HasSubstr("LOCKSTEP_GPU=1 make setup"), Not(HasSubstr("cuDNN")),
                    Not(HasSubstr("plug-in"))));
  facts = healthy();
  facts.libraries.missing = {"libcudnn.so.9", "libcusparseLt.so.0"};
  facts.libraries.cudnn = {};
  EXPECT_THAT(troubles(facts), HasSubstr("libtorch_cuda.so needs libcudnn.so.9, "
                                         "libcusparseLt.so.0, which the dynamic loader"));
  facts = healthy();
  facts.libraries.nccl.problem = "undefined symbol: x";
  EXPECT_THAT(troubles(facts), HasSubstr("libnccl.so.2 cannot be loaded: undefined symbol: x"));
  EXPECT_TRUE(is_problem(facts));
  facts.libraries.nccl.problem.clear();
  facts.libraries.cufile.problem = "torn";
  EXPECT_FALSE(is_problem(facts)) << "only speed hangs on it";
}

TEST(GpuChecks, ThePlugInOfAnotherBuild) {
  GpuFacts facts = healthy();
  facts.libraries.plugin.version = 3;
  EXPECT_THAT(troubles(facts), AllOf(HasSubstr("is of version 3, this lockstep needs 4"),
                                     HasSubstr("build both together")));
  EXPECT_TRUE(is_problem(facts));
  facts.libraries.plugin = {};
  EXPECT_THAT(troubles(facts), HasSubstr("note     GPU plug-in  none: liblockstep_cuda.so"));
  EXPECT_FALSE(is_problem(facts));
  facts.libraries.plugin = {.path = "/x/other.so", .problem = "it is no plug-in of lockstep"};
  EXPECT_THAT(troubles(facts), HasSubstr("/x/other.so: it is no plug-in"));
}

TEST(GpuChecks, AGpuThatThePlugInHasNoCodeFor) {
  const auto verdict = [](int capability, std::vector<int> machine, std::vector<int> ptx) {
    GpuFacts facts = healthy();
    facts.devices.push_back(h200(1));
    facts.devices[1].capability = capability;
    facts.libraries.plugin_architectures = std::move(machine);
    facts.libraries.plugin_ptx = std::move(ptx);
    return troubles(facts);
  };
  EXPECT_EQ(verdict(89, {80, 90}, {}), "") << "the same generation, and later";
  EXPECT_THAT(verdict(120, {80, 90}, {}),
              AllOf(HasSubstr("GPU 1 (NVIDIA H200) has 12.0"),
                    HasSubstr("-DLOCKSTEP_CUDA_ARCHITECTURES=\"80;90;120\"")));
  EXPECT_THAT(verdict(80, {86, 90}, {}), HasSubstr("has 8.0")) << "earlier";
  EXPECT_EQ(verdict(120, {80, 90}, {90}), "") << "the driver compiles it";
  EXPECT_EQ(verdict(120, {}, {}), "") << "nothing is known";
}

TEST(GpuChecks, DevicesThatProgramsMayNotUse) {
  EXPECT_THAT(device_troubles([](GpuDevice& d) { d.compute_mode = 2; }),
              AllOf(HasSubstr("PROBLEM  GPU 0  compute mode Prohibited"),
                    HasSubstr("nvidia-smi -i 0 -c DEFAULT")));
  EXPECT_THAT(device_troubles([](GpuDevice& d) { d.compute_mode = 3; }),
              AllOf(HasSubstr("note     GPU 0  compute mode Exclusive"), HasSubstr("--share-gpu")));
  EXPECT_THAT(
      device_troubles([](GpuDevice& d) {
        d.compute_mode = 3;
        d.processes = {{.pid = 4711, .memory_bytes = 3 * kGiB}};
      }),
      HasSubstr("PROBLEM  GPU 0  compute mode Exclusive, and taken: pid 4711 with 3.0 GiB"));
  EXPECT_THAT(device_troubles([](GpuDevice& d) { d.capability = 70; }),
              HasSubstr("compute capability 7.0, 345 of 1980 MHz"));
  EXPECT_TRUE(is_device_problem([](GpuDevice& d) { d.capability = 70; }));
  EXPECT_THAT(device_troubles([](GpuDevice& d) { d = {.index = 5, .problem = "GPU is lost"}; }),
              HasSubstr("PROBLEM  GPU 5  GPU is lost"));
  EXPECT_THAT(device_troubles([](GpuDevice& d) { d.mig = 1; }),
              HasSubstr("CUDA_VISIBLE_DEVICES=MIG-...,MIG-..."));
}

TEST(GpuChecks, DevicesThatOthersUse) {
  const std::string text = device_troubles([](GpuDevice& d) {
    for (int64_t pid = 1; pid <= 6; ++pid) {
      d.processes.push_back({.pid = pid, .memory_bytes = pid == 2 ? 0 : 2 * kGiB});
    }
  });
  EXPECT_THAT(text, HasSubstr("note     GPU 0  in use: pid 1 with 2.0 GiB, pid 2, pid 3 with 2.0 "
                              "GiB, pid 4 with 2.0 GiB, 2 more\n"));
}

TEST(GpuChecks, BrokenMemory) {
  EXPECT_THAT(device_troubles([](GpuDevice& d) { d.ecc_uncorrected = 1; }),
              AllOf(HasSubstr("PROBLEM  GPU 0  1 memory error that ECC could not correct"),
                    HasSubstr("--gpu-reset")));
  EXPECT_THAT(device_troubles([](GpuDevice& d) { d.remap_failed = 1; }),
              HasSubstr("PROBLEM  GPU 0  memory that is broken cannot be replaced"));
  EXPECT_THAT(device_troubles([](GpuDevice& d) { d.pages_pending = 1; }),
              HasSubstr("note     GPU 0  memory that is broken will be replaced"));
}

TEST(GpuChecks, SlowDevices) {
  const std::string hot = device_troubles([](GpuDevice& d) {
    d.clock_reasons = 0x40 | 0x8;
    d.temperature_c = 92;
  });
  EXPECT_THAT(hot, HasSubstr("note     GPU 0  slowed down by heat (92 C)"));
  EXPECT_THAT(device_troubles([](GpuDevice& d) { d.clock_reasons = 0x20; }), HasSubstr("heat"));
  EXPECT_THAT(device_troubles([](GpuDevice& d) { d.clock_reasons = 0x80 | 0x8; }),
              HasSubstr("power brake"));
  EXPECT_THAT(device_troubles([](GpuDevice& d) { d.clock_reasons = 0x8; }),
              HasSubstr("by its hardware (31 C)"));
  EXPECT_THAT(device_troubles([](GpuDevice& d) { d.clock_reasons = 0x4; }),
              HasSubstr("at its power limit of 700 W"));
  EXPECT_THAT(device_troubles([](GpuDevice& d) { d.power_limit_mw = 500000; }),
              AllOf(HasSubstr("limited to 500 W, the default is 700 W"), HasSubstr("-pl 700")));
  EXPECT_THAT(device_troubles([](GpuDevice& d) { d.persistence = 0; }),
              HasSubstr("persistence mode is off"));
  EXPECT_THAT(device_troubles([](GpuDevice& d) { d.pcie_width = 8; }),
              HasSubstr("PCIe with 8 lanes of 16"));
}

TEST(GpuChecks, WhatADriverDoesNotTellIsNoTrouble) {
  EXPECT_EQ(device_troubles([](GpuDevice& d) { d = {.index = 0, .name = "GB10"}; }), "");
}

TEST(GpuChecks, LinksBetweenDevices) {
  GpuFacts facts = healthy();
  facts.devices = {h200(0), h200(1), h200(2)};
  facts.links = {{.from = 0, .to = 1, .level = 50, .nvlink = 0, .peer_read = 0},
                 {.from = 0, .to = 2, .level = 50, .nvlink = 5, .peer_read = 3},
                 {.from = 1, .to = 2, .level = 10, .nvlink = 5, .peer_read = 0}};
  EXPECT_THAT(
      troubles(facts),
      HasSubstr("note     GPU links  1 of 3 pairs by NVLink; 0-2 across NUMA nodes, 1-2 over "
                "a PCIe switch; no direct copies: 0-2\n"));
  facts.links.resize(1);
  EXPECT_EQ(troubles(facts), "");
  EXPECT_EQ(check_gpu_links(facts).found, "1 of 1 pairs by NVLink");
}

TEST(GpuJson, FactsComeBackAsTheyWere) {
  GpuFacts facts = healthy();
  facts.visible = "GPU-\xff";  // no UTF-8: replaced, and no end
  facts.devices[0].processes = {{.pid = 7, .memory_bytes = 5}};
  facts.links = {{.from = 0, .to = 1, .level = 40, .nvlink = 2, .peer_read = 1}};
  const GpuFacts back = facts_from_json(to_json(facts));
  EXPECT_EQ(to_json(back), to_json(facts));
  EXPECT_EQ(back.devices[0].memory_total_bytes, 140 * kGiB);
  EXPECT_EQ(back.links[0].peer_read, 1);
  for (const char* torn : {"", "{", "[]", "{\"wanted\": \"\"}", "null"}) {
    EXPECT_THROW(facts_from_json(torn), FormatError) << torn;
  }
}

TEST(GpuJson, UsersSeeUnitsAndNull) {
  GpuFacts facts = healthy();
  facts.devices[0].mig = kUnknown;
  facts.devices[0].numa_node = kUnknown;
  const auto json = nlohmann::json::parse(
      report_json({.checks = check_gpus(facts, kPluginVersion), .gpus = facts}));
  EXPECT_TRUE(json["ok"].get<bool>());
  const auto& gpu = json["gpus"][0];
  EXPECT_EQ(gpu["name"], "NVIDIA H200");
  EXPECT_EQ(gpu["memory_total_bytes"], 140 * kGiB);
  EXPECT_DOUBLE_EQ(gpu["compute_capability"].get<double>(), 9.0);
  EXPECT_DOUBLE_EQ(gpu["power_w"].get<double>(), 76.9);
  EXPECT_EQ(gpu["ecc"], true);
  EXPECT_TRUE(gpu["mig"].is_null());
  EXPECT_TRUE(gpu["numa_node"].is_null());
  EXPECT_THAT(nlohmann::json::parse(report_json({}))["gpus"], IsEmpty());
}

}  // namespace
}  // namespace lockstep::doctor

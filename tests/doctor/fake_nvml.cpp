// A libnvidia-ml.so.1 that plays a machine with two GPUs, for gpu_probe_test. What it declares is
// the library's binary interface, written down apart from the doctor's own declarations. FAKE_NVML
// says what is special: "lost" (the second GPU), "mismatch", "hang", "stuck" (it hangs, and the
// process cannot be reaped) or "crash".

#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <string_view>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

struct PciInfo {
  char bus_id_legacy[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pci_device_id;
  unsigned int pci_subsystem_id;
  char bus_id[32];
};

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct ProcessInfo {
  unsigned int pid;
  unsigned long long used_gpu_memory;
  unsigned int gpu_instance_id;
  unsigned int compute_instance_id;
};

constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
constexpr int kInsufficientSize = 7;
constexpr int kGpuIsLost = 15;
constexpr int kMismatch = 18;
constexpr unsigned kNumProcesses = 40;

int devices[2];

std::string_view mode() {
  const char* value = std::getenv("FAKE_NVML");
  return value ? value : "";
}

// A process that another one traces stays a zombie for its parent, until the tracer looks: it plays
// one in the driver that no signal reaches. The tracer, its child, lives as long as the doctor.
void become_unreapable() {
  const int doctor = static_cast<int>(::syscall(SYS_pidfd_open, ::getppid(), 0));
  const pid_t traced = ::getpid();
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  if (doctor >= 0 && ::fork() == 0) {
    ::ptrace(PTRACE_SEIZE, traced, nullptr, nullptr);
    pollfd event{doctor, POLLIN, 0};
    ::poll(&event, 1, -1);
    ::_exit(0);
  }
}

unsigned number_of(const void* device) {
  return device == &devices[1] ? 1 : 0;
}

int put(unsigned* value, unsigned number) {
  *value = number;
  return kSuccess;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  if (mode() == "stuck") {
    become_unreapable();
  }
  if (mode() == "hang" || mode() == "stuck") {
    ::sleep(1000);
  }
  if (mode() == "crash") {
    ::abort();
  }
  return mode() == "mismatch" ? kMismatch : kSuccess;
}
int nvmlShutdown() {
  return kSuccess;
}
const char* nvmlErrorString(int error) {
  return error == kMismatch    ? "Driver/library version mismatch"
         : error == kGpuIsLost ? "GPU is lost"
                               : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  std::strncpy(text, "580.95.05", length);
  return kSuccess;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  return put(count, 2);
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &devices[index];
  return index == 1 && mode() == "lost" ? kGpuIsLost : kSuccess;
}
int nvmlDeviceGetName(void* device, char* text, unsigned length) {
  std::strncpy(text, number_of(device) == 0 ? "NVIDIA H200" : "NVIDIA A100", length);
  return kSuccess;
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned length) {
  std::strncpy(text, number_of(device) == 0 ? "GPU-aa" : "GPU-bb", length);
  return kSuccess;
}
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) {
  *info = {"0000:1B:00.0", 0, 0x1b + number_of(device), 0, 0x233510de, 7, "00000000:1B:00.0"};
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  *memory = {150000000000ull + number_of(device), 140000000000ull, 10000000000ull};
  return kSuccess;
}
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  *major = number_of(device) == 0 ? 9 : 8;
  *minor = 0;
  return kSuccess;
}
int nvmlDeviceGetClockInfo(void*, int type, unsigned* clock) {
  return type == 1 ? put(clock, 1410) : kNotSupported;
}
int nvmlDeviceGetMaxClockInfo(void*, int type, unsigned* clock) {
  return type == 1 ? put(clock, 1980) : kNotSupported;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = 0x40;
  return kSuccess;
}
int nvmlDeviceGetTemperature(void*, int sensor, unsigned* temperature) {
  return sensor == 0 ? put(temperature, 88) : kNotSupported;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* power) {
  return put(power, 76900);
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* power) {
  return put(power, 600000);
}
int nvmlDeviceGetPowerManagementDefaultLimit(void*, unsigned* power) {
  return put(power, 700000);
}
int nvmlDeviceGetPersistenceMode(void*, unsigned* mode) {
  return put(mode, 1);
}
int nvmlDeviceGetComputeMode(void* device, unsigned* mode) {
  return put(mode, number_of(device) == 0 ? 0 : 3);
}
int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending) {
  *pending = 1;
  return number_of(device) == 0 ? put(current, 0) : kNotSupported;
}
int nvmlDeviceGetEccMode(void*, unsigned* current, unsigned* pending) {
  *pending = 0;
  return put(current, 1);
}
int nvmlDeviceGetTotalEccErrors(void* device, int error_type, int counter_type,
                                unsigned long long* count) {
  *count = counter_type == 1 ? 1000 : error_type == 1 ? number_of(device) : 12;
  return kSuccess;
}
int nvmlDeviceGetRetiredPagesPendingStatus(void*, unsigned*) {
  return kNotSupported;
}
int nvmlDeviceGetRemappedRows(void*, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  *corrected = 5;
  *uncorrected = 6;
  *failed = 0;
  return put(pending, 1);
}
int nvmlDeviceGetCurrPcieLinkWidth(void*, unsigned* width) {
  return put(width, 8);
}
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* width) {
  return put(width, 16);
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, ProcessInfo* infos) {
  if (number_of(device) == 1) {
    return put(count, 0);
  }
  const unsigned room = *count;
  *count = kNumProcesses;
  if (room < kNumProcesses) {
    return kInsufficientSize;
  }
  for (unsigned i = 0; i < kNumProcesses; ++i) {
    infos[i] = {100 + i, i == 0 ? ~0ull : 1000ull * i, ~0u, ~0u};
  }
  return kSuccess;
}
int nvmlDeviceGetTopologyCommonAncestor(void*, void*, unsigned* level) {
  return put(level, 40);
}
int nvmlDeviceGetP2PStatus(void*, void*, int index, unsigned* status) {
  return put(status, index == 2 ? 5 : index == 0 ? 0 : 6);
}
}

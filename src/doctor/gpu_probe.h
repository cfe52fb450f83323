#pragma once

// Asks the machine about its GPUs.

#include <functional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "doctor/gpu_facts.h"

namespace lockstep::doctor {

struct GpuProbeOptions {
  std::string root;           // put before /proc, /sys and /dev; tests use a folder of their own
  std::string torch_program;  // REQUIRED: lockstep-torch, whose libtorch it is about
  std::string plugin_entry;   // the function by which the plug-in is known; empty: not asked
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  // for each library
};

// Reads files of the kernel, then lets a process of its own load the driver's and libtorch's
// libraries and ask them: one that hangs, as it does with a broken GPU, or crashes is a finding and
// not our end, and what the others told stays known.
// Where there is nothing of NVIDIA's, no library is loaded and no process started. Call it in a
// process without threads.
GpuFacts probe_gpus(const GpuProbeOptions& options);

// Its parts, for the process that asks. NVML and libcuda, found as every program finds them.
void ask_nvml(GpuFacts& facts, const std::string& root);
void ask_cuda(GpuDriver& driver);

// Files only: the kernel's, and the libraries beside libtorch.
GpuDriver read_driver(const std::string& root);
GpuLibraries find_libraries(const GpuProbeOptions& options);

// How a library that tells a version is loaded and asked.
struct LibraryQuestion {
  GpuLibrary GpuLibraries::*library;
  std::function<void(GpuLibraries&)> ask;
};
std::vector<LibraryQuestion> library_questions(const std::string& plugin_entry);

// The architectures that a library has GPU code for, as its section .nv_fatbin tells; both lists
// are empty if there is none.
struct GpuCode {
  std::vector<int> machine;  // 80: code for compute capability 8.0
  std::vector<int> ptx;
};
GpuCode read_gpu_code(const std::string& library);

}  // namespace lockstep::doctor

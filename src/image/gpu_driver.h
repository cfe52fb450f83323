#pragma once

// What of the GPU driver goes into an image with the job. The driver's libraries must fit the
// module in the kernel, so they are the host's and never the image's. The devices are in /dev.

#include <optional>
#include <string>
#include <vector>

#include "image/elf.h"

namespace lockstep::image {

// Where the libraries are seen inside; LD_LIBRARY_PATH there begins with it. It is in /run, which
// is new for each job: nothing in an image can be in its place.
inline constexpr const char* kDriverFolder = "/run/lockstep/driver";

struct DriverLibrary {
  std::string name;    // "libcuda.so.1": how programs ask for it
  std::string source;  // the file itself
};

struct GpuDriver {
  std::string version;                   // "580.95.05", as libcuda's file says; may be empty
  std::vector<DriverLibrary> libraries;  // sorted by name; libcuda.so.1 is one
  std::vector<std::string> services;     // folders with sockets that the libraries know of
};

struct GpuDriverOptions {
  std::string root;                  // put before every path; tests use a folder of their own
  std::vector<std::string> folders;  // searched first: those of LD_LIBRARY_PATH
  std::string mps_folder;            // CUDA_MPS_PIPE_DIRECTORY, absolute; empty: /tmp/nvidia-mps
};

// Nothing if there is no device, or no libcuda.so.1 for this machine.
std::optional<GpuDriver> find_gpu_driver(const GpuDriverOptions& options);

// The same for this host and this process's environment. Nothing if LOCKSTEP_DEVICE=cpu: the job
// wants no GPU.
std::optional<GpuDriver> host_gpu_driver();

// What a GPU job needs of the image that this process is in.
struct GpuNeeds {
  int num_libraries = 0;     // of the driver, that have come in; 0: none
  std::string version;       // the driver's
  std::string needed_glibc;  // what they were built for; empty: it cannot be told
  std::string image_glibc;   // empty: the image has none
  std::string problem;       // why a GPU program will not start; empty: it can
};
GpuNeeds look_at_gpu_needs(const std::string& root = "");

}  // namespace lockstep::image

#pragma once

// What the files of a host tell of NVIDIA's GPUs, without a library of the driver. `root` stands
// before every path; tests use a folder of their own.

#include <string>

namespace lockstep::base {

// How many /dev/nvidia<N> there are. A container may have number 3 alone.
int count_gpu_files(const std::string& root = "");

// Whether there is a GPU without such a file: a Jetson's or, in WSL 2, that of Windows. /dev/dxg
// stands for the GPUs of every vendor, so it counts only together with the libcuda.so.1 that
// Windows' driver lends.
bool has_gpu_without_file(const std::string& root = "");

}  // namespace lockstep::base

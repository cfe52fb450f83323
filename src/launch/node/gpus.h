#pragma once

// Which GPUs a program on this host sees, and where they are. Works without CUDA.

#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

// The entries of CUDA_VISIBLE_DEVICES, read as CUDA reads it: numbers, or names that begin with
// GPU-, or names that begin with MIG-, whichever the first one is. The list ends before the first
// entry of another kind (so "-1" and "none" hide all GPUs), and an entry that occurs twice makes it
// empty.
std::vector<std::string> visible_entries(const std::string& visible);

// The GPUs that a program sees, each by a name that CUDA_VISIBLE_DEVICES takes: all of this host
// (/dev/nvidia0, ...), or what CUDA_VISIBLE_DEVICES (`visible`; an empty text hides them all)
// leaves of them. The list ends before an entry that names no GPU of this host. In WSL 2 and on a
// Jetson, where GPUs have no such file, there is one. `root` stands before /dev and /proc.
std::vector<std::string> visible_gpus(const std::string& root,
                                      const std::optional<std::string>& visible);

// For each of these GPUs, and no more, its NUMA node, -1 where it is unknown; empty without
// NVIDIA's driver. GPUs are counted in the order of their PCI addresses, as CUDA does where all are
// of one kind.
std::vector<int> gpu_numa_nodes(const std::string& root, const std::optional<std::string>& visible);

// CUDA_VISIBLE_DEVICES, which may be set and empty.
std::optional<std::string> visible_devices();

}  // namespace lockstep::launch

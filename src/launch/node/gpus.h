#pragma once

// Which GPUs a rank sees, and where they are. Works without CUDA.

#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

// The entries of CUDA_VISIBLE_DEVICES that name a device. CUDA stops at the first that does not:
// what follows is hidden.
std::vector<std::string> visible_entries(const std::string& visible);

// How many GPUs a program would see: the entries of CUDA_VISIBLE_DEVICES (`visible`; not set is not
// empty, which hides them all) or the devices /dev/nvidia0, ... `root` stands before /dev.
int count_gpus(const std::string& root, const std::optional<std::string>& visible);

// For each of these GPUs its NUMA node, -1 where it is unknown; empty without NVIDIA's driver. GPUs
// are counted in the order of their PCI addresses, as CUDA does where all are of one kind.
std::vector<int> gpu_numa_nodes(const std::string& root, const std::optional<std::string>& visible);

// CUDA_VISIBLE_DEVICES, which may be set and empty.
std::optional<std::string> visible_devices();

}  // namespace lockstep::launch

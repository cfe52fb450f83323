#pragma once

// How much memory the control groups of this process leave it: a job may see a host's terabyte and
// be killed at 64 GB.

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::base {

// What it may still take before the nearest limit of its group, or of one above it; files in memory
// that the kernel can drop count as free. Nothing if there is no limit.
std::optional<uint64_t> memory_left_in_cgroups(const std::string& root = "");

}  // namespace lockstep::base

#pragma once

// What the libtorch from PyPI needs of NVIDIA's driver.

#include <string>

#include <fmt/format.h>

namespace lockstep::base {

inline constexpr int kNeededCuda = 13000;  // as cuDriverGetVersion() counts
inline constexpr const char* kNeededDriver = "580.65.06";

// 12040 -> "12.4"
inline std::string cuda_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace lockstep::base

#pragma once

// The version of lockstep; CMake reads it from here.

namespace lockstep {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace lockstep

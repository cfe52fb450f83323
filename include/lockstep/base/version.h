#pragma once

// The version of lockstep. CMake reads it from here, so this line is the only place that holds it.

namespace lockstep {

// The major, minor and patch version. Before 1.0 a minor version may change the API.
inline constexpr const char* kVersion = "0.1.0";

}  // namespace lockstep

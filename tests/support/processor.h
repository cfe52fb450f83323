#pragma once

// Golden values were made on Intel processors. MKL, which libtorch calls for matrices and some
// functions, takes other ways on those of other makers, and the last bits differ.

namespace lockstep::testing_support {

inline bool is_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

}  // namespace lockstep::testing_support

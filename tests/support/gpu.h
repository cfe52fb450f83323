#pragma once

// Tests that need a GPU: LOCKSTEP_NEEDS_GPU() in the test's body or SetUp(). All ranks share it.

#include <optional>
#include <string>

#include <lockstep/device/device.h>

#include "support/service.h"

namespace lockstep::testing_support {

inline std::optional<std::string> gpu_refusal() {
  const std::string problem = cuda_problem();
  return problem.empty() ? std::nullopt : std::optional(problem);
}

inline at::Device gpu() {
  return {at::kCUDA, 0};
}

}  // namespace lockstep::testing_support

#define LOCKSTEP_NEEDS_GPU() LOCKSTEP_NEEDS("device", ::lockstep::testing_support::gpu_refusal())

#pragma once

// What is right and wrong with the GPUs of a machine, given what was found there.

#include <vector>

#include "doctor/doctor.h"
#include "doctor/gpu_facts.h"

namespace lockstep::doctor {

// One line where there is no GPU. `plugin_version`: what this build's programs need of the plug-in.
std::vector<CheckResult> check_gpus(const GpuFacts& facts, int plugin_version);

// Its parts.
std::vector<CheckResult> check_gpu_driver(const GpuFacts& facts);
std::vector<CheckResult> check_gpu_libraries(const GpuFacts& facts, int plugin_version);
std::vector<CheckResult> check_gpu_device(const GpuDevice& device);
CheckResult check_gpu_links(const GpuFacts& facts);

}  // namespace lockstep::doctor

#include <mutex>

#include <ATen/Context.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/device/device.h>

#include "base/env.h"
#include "device/cuda_library.h"
#include "device/pick_gpu.h"

namespace lockstep {

bool cuda_is_available() {
  return device::load_cuda().empty();
}

std::string cuda_problem() {
  return device::load_cuda();
}

at::Device local_device() {
  const base::Env env;
  const std::string wanted = env.text("LOCKSTEP_DEVICE").value_or("auto");
  if (wanted != "auto" && wanted != "cpu" && wanted != "cuda") {
    throw UsageError("LOCKSTEP_DEVICE={} is not known; it is auto, cpu or cuda", wanted);
  }
  if (wanted == "cpu") {
    return at::kCPU;
  }
  if (const std::string& problem = device::load_cuda(); !problem.empty()) {
    if (wanted == "cuda") {
      throw UsageError("LOCKSTEP_DEVICE=cuda: {}", problem);
    }
    return at::kCPU;
  }
  const auto num_gpus = static_cast<int>(at::getNumGPUs());
  const int gpu = device::pick_gpu(env, num_gpus);
  static std::once_flag is_told;
  std::call_once(is_told, [&] {
    if (const std::string idle = device::idle_gpus(env, num_gpus); !idle.empty()) {
      log::warn("device", "{}", idle);
    }
  });
  return {at::kCUDA, static_cast<at::DeviceIndex>(gpu)};
}

}  // namespace lockstep

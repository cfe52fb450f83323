#pragma once

// libtorch's settings for the device of a run, which are the whole process's.

#include <optional>
#include <string>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <lockstep/train/trainer.h>

namespace lockstep::train {

// While it lives, Float32 and `deterministic` mean on a GPU what they promise; afterwards libtorch
// is set as it was. It does nothing for the CPU. Only CUBLAS_WORKSPACE_CONFIG stays set: cuBLAS
// reads it once.
// Threads: one that lives must end before another thread makes one.
class DeviceSettings {
 public:
  DeviceSettings(at::Device device, const TrainerOptions& options);
  ~DeviceSettings();
  DeviceSettings(const DeviceSettings&) = delete;
  DeviceSettings& operator=(const DeviceSettings&) = delete;

 private:
  // What was set before; nothing for what is left alone.
  struct Kernels {
    bool algorithms = false;
    bool warns_only = false;
    bool cudnn = false;
    bool cudnn_benchmark = false;
    bool memory_efficient_attention = false;
    bool cudnn_attention = false;
  };
  void choose_deterministic();

  std::optional<Kernels> kernels_;
  std::optional<bool> tf32_in_cudnn_;
  std::optional<bool> tf32_in_cublas_;
};

// Throws UsageError, which names the operation, if `error` is libtorch's about one that has no
// deterministic form, and does nothing for any other. `what` was being done.
void refuse_nondeterminism(const c10::Error& error, const std::string& what);

// Returns what `body` returns; `describe` is asked for the `what` of such an error.
template <typename Body, typename Describe>
auto explain_nondeterminism(Body body, Describe describe) {
  try {
    return body();
  } catch (const c10::Error& error) {
    refuse_nondeterminism(error, describe());
    throw;
  }
}

}  // namespace lockstep::train

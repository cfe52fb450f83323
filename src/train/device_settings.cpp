#include "train/device_settings.h"

#include <cstdlib>

#include <ATen/Context.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/env.h"
#include "ddp/device/device_path.h"

namespace lockstep::train {
namespace {

constexpr const char* kWorkspace = "CUBLAS_WORKSPACE_CONFIG";
constexpr const char* kReproducibleWorkspace = ":4096:8";

// Libtorch does not tell, but throws, where the program has mixed its old and its new way to set
// TF32. It is set all the same, and stays so.
template <typename Ask>
std::optional<bool> told(Ask ask) {
  try {
    return ask();
  } catch (const c10::Error& error) {
    log::debug("train", "TF32 will not be put back: {}", error.what_without_backtrace());
    return std::nullopt;
  }
}

}  // namespace

DeviceSettings::DeviceSettings(at::Device device, const TrainerOptions& options) {
  if (!ddp::takes_device_path(device)) {
    return;
  }
  at::Context& context = at::globalContext();
  if (options.precision == Precision::Float32) {
    tf32_in_cudnn_ = told([&] { return context.allowTF32CuDNN(); });
    tf32_in_cublas_ = told([&] { return context.allowTF32CuBLAS(); });
    context.setAllowTF32CuDNN(false);
    context.setAllowTF32CuBLAS(false);
  }
  if (options.deterministic) {
    choose_deterministic();
  }
}

void DeviceSettings::choose_deterministic() {
  at::Context& context = at::globalContext();
  kernels_ = {.algorithms = context.deterministicAlgorithms(),
              .warns_only = context.deterministicAlgorithmsWarnOnly(),
              .cudnn = context.deterministicCuDNN(),
              .cudnn_benchmark = context.benchmarkCuDNN(),
              .memory_efficient_attention = context.userEnabledMemEfficientSDP(),
              .cudnn_attention = context.userEnabledCuDNNSDP()};
  ::setenv(kWorkspace, kReproducibleWorkspace, /*overwrite=*/0);  // read with the first product
  context.setDeterministicAlgorithms(/*b=*/true, /*warn_only=*/false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  // These two add gradients of attention in any order. Flash has a way that does not.
  context.setSDPUseMemEfficient(false);
  context.setSDPUseCuDNN(false);
}

DeviceSettings::~DeviceSettings() {
  at::Context& context = at::globalContext();
  try {
    if (kernels_) {
      context.setDeterministicAlgorithms(kernels_->algorithms, kernels_->warns_only);
      context.setDeterministicCuDNN(kernels_->cudnn);
      context.setBenchmarkCuDNN(kernels_->cudnn_benchmark);
      context.setSDPUseMemEfficient(kernels_->memory_efficient_attention);
      context.setSDPUseCuDNN(kernels_->cudnn_attention);
    }
    if (tf32_in_cudnn_) {
      context.setAllowTF32CuDNN(*tf32_in_cudnn_);
    }
    if (tf32_in_cublas_) {
      context.setAllowTF32CuBLAS(*tf32_in_cublas_);
    }
  } catch (const std::exception& error) {
    log::warn("train", "libtorch's settings stay as the run had them: {}", error.what());
  }
}

// Libtorch has no type of its own for these errors.
void refuse_nondeterminism(const c10::Error& error, const std::string& what) {
  const std::string text = error.what_without_backtrace();
  if (const size_t end = text.find(" does not have a deterministic implementation");
      end != std::string::npos) {
    throw UsageError(
        "{}: train.deterministic = true, but {} has no deterministic form in libtorch: a run could "
        "not have the same bits again. Compute it by other operations, or set train.deterministic "
        "= false",
        what, text.substr(0, end));
  }
  if (text.find("because it uses CuBLAS") != std::string::npos) {
    throw UsageError(
        "{}: train.deterministic = true, but cuBLAS adds in any order here: {} was \"{}\" at this "
        "process's first product on a GPU, and is read only then. Set {}={} where the program is "
        "started, or set train.deterministic = false",
        what, kWorkspace, base::Env().text(kWorkspace).value_or(""), kWorkspace,
        kReproducibleWorkspace);
  }
}

}  // namespace lockstep::train

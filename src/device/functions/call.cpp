#include "device/functions/call.h"

#include <map>
#include <mutex>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "device/functions/functions.h"
#include "device/kernels.h"

namespace lockstep::device {
namespace {

thread_local FunctionsUse functions_use = FunctionsUse::WhereFast;

// What the dropouts of this thread share.
struct SharedDraw {
  int depth = 0;  // of SharedDropouts: the outermost one counts
  at::Tensor state;
  int64_t next_site = 0;
};
thread_local SharedDraw shared_draw;

at::Tensor draw_state(at::Device device) {
  const at::NoGradGuard no_grad;
  return at::empty({2}, at::TensorOptions(at::kLong).device(device)).random_();
}

// Asked once for each GPU.
bool has_cuda_functions(at::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, bool> known;
  const LockstepKernels* kernels = cuda_kernels();
  if (kernels == nullptr) {
    return false;
  }
  const std::lock_guard lock(mutex);
  const auto found = known.find(device.index());
  return found != known.end()
             ? found->second
             : known.emplace(device.index(), can_run(*kernels, device)).first->second;
}

}  // namespace

bool can_run(const LockstepKernels& kernels, at::Device device) {
  const c10::DeviceGuard guard(device);
  const at::Tensor x = at::empty({1}, at::TensorOptions(at::kFloat).device(device));
  const LockstepGeluForward arguments{.rows = 1,
                                      .columns = 1,
                                      .type = LOCKSTEP_FLOAT32,
                                      .form = LOCKSTEP_GELU_ERF,
                                      .x = x.data_ptr(),
                                      .out = x.data_ptr()};
  const char* error = kernels.gelu_forward(&arguments, stream_of(device));
  if (error != nullptr) {
    log::warn("device",
              "lockstep's kernels do not run on {} ({}): libtorch's operators are used, which are "
              "slower; build the plug-in with its compute capability in "
              "LOCKSTEP_CUDA_ARCHITECTURES",
              device.str(), error);
  }
  return error == nullptr;
}

bool has_functions(const at::Tensor& x) {
  if (functions_use == FunctionsUse::Nowhere ||
      (x.scalar_type() != at::kFloat && x.scalar_type() != at::kBFloat16)) {
    return false;
  }
  return x.is_cuda() ? has_cuda_functions(x.device())
                     : x.is_cpu() && functions_use == FunctionsUse::Everywhere;
}

std::optional<at::ScalarType> function_type(const at::Tensor& x, at::TensorList parameters) {
  if (!has_functions(x)) {
    return std::nullopt;
  }
  for (const at::Tensor& parameter : parameters) {
    if (parameter.defined() && parameter.scalar_type() != at::kFloat) {
      return std::nullopt;
    }
  }
  const at::DeviceType device = x.device().type();
  if (!at::autocast::is_autocast_enabled(device)) {
    return x.scalar_type();
  }
  return at::autocast::get_autocast_dtype(device) == at::kBFloat16 ? std::optional(at::kBFloat16)
                                                                   : std::nullopt;
}

UseFunctions::UseFunctions(FunctionsUse use) : before_(functions_use) {
  functions_use = use;
}

UseFunctions::~UseFunctions() {
  functions_use = before_;
}

SharedDropout::SharedDropout() {
  ++shared_draw.depth;
}

SharedDropout::~SharedDropout() {
  if (--shared_draw.depth == 0) {
    shared_draw = {};
  }
}

const LockstepKernels& kernels_of(at::Device device) {
  if (device.is_cpu()) {
    return cpu_kernels();
  }
  const LockstepKernels* kernels = device.is_cuda() ? cuda_kernels() : nullptr;
  LOCKSTEP_CHECK(kernels != nullptr, "there are no kernels for {}: {}", device.str(),
                 plugin_state());
  return *kernels;
}

void* stream_of(at::Device device) {
  return device.is_cpu()
             ? nullptr
             : c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

int32_t kernel_type(const at::Tensor& x) {
  LOCKSTEP_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
                 "the kernels take float32 and bfloat16, not {}", toString(x.scalar_type()));
  return x.scalar_type() == at::kFloat ? LOCKSTEP_FLOAT32 : LOCKSTEP_BFLOAT16;
}

void* data_of(const at::Tensor& x) {
  LOCKSTEP_CHECK(!x.defined() || x.numel() == 0 || x.is_non_overlapping_and_dense(),
                 "a kernel was given memory with holes");
  return x.defined() ? x.data_ptr() : nullptr;
}

float* floats_of(const at::Tensor& x) {
  LOCKSTEP_CHECK(!x.defined() || (x.scalar_type() == at::kFloat && x.is_contiguous()),
                 "parameters of the kernels are float32 and contiguous");
  return x.defined() ? x.data_ptr<float>() : nullptr;
}

at::Tensor scratch_of(at::Device device, size_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).device(device));
}

int64_t rows_of(const at::Tensor& x, int64_t columns) {
  LOCKSTEP_CHECK(columns > 0 && x.dim() > 0 && x.size(-1) == columns,
                 "rows of {} elements have {} parameters", x.dim() > 0 ? x.size(-1) : 0, columns);
  return x.numel() / columns;
}

std::optional<at::Tensor> if_defined(const at::Tensor& x) {
  return x.defined() ? std::optional(x) : std::nullopt;
}

void refuse_second_derivatives(const char* function) {
  if (at::GradMode::is_enabled()) {
    throw UsageError(
        "{}: backward with create_graph: lockstep's kernels have no second derivatives; compute "
        "them on the CPU (LOCKSTEP_DEVICE=cpu), where the models use libtorch's operators",
        function);
  }
}

LockstepDropout DrawnDropout::arguments() const {
  return {.probability = static_cast<float>(probability),
          .site = static_cast<uint32_t>(site),
          .state = state.defined() ? reinterpret_cast<const uint64_t*>(state.data_ptr<int64_t>())
                                   : nullptr};
}

DrawnDropout draw_dropout(double probability, at::Device device) {
  LOCKSTEP_CHECK(probability >= 0 && probability <= kMostDropout,
                 "a dropout of {} is not in [0, {}]", probability, kMostDropout);
  if (probability == 0) {
    return {};
  }
  if (shared_draw.depth == 0) {
    return {.probability = probability, .state = draw_state(device)};
  }
  if (!shared_draw.state.defined() || shared_draw.state.device() != device) {
    shared_draw.state = draw_state(device);
  }
  return {.probability = probability, .site = shared_draw.next_site++, .state = shared_draw.state};
}

}  // namespace lockstep::device

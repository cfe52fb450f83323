#pragma once

// What the autograd Functions over the kernels share.

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "device/plugin.h"
#include "device/plugin_kernels.h"

namespace lockstep::device {

// The twins for the CPU, else the plug-in's. Throws InternalError where there is no plug-in.
const LockstepKernels& kernels_of(at::Device device);

// Whether the kernels run on the device: a plug-in has code for some models of GPU. Where they do
// not, a warning says so.
bool can_run(const LockstepKernels& kernels, at::Device device);

// The current stream of the device, as kernels take it.
void* stream_of(at::Device device);

// Runs a kernel on the current stream of the device, as in
// `call_kernel(device, &LockstepKernels::gelu_forward, arguments, "gelu_forward")`.
template <typename Arguments>
void call_kernel(at::Device device,
                 const char* (*LockstepKernels::*kernel)(const Arguments*, void*),
                 const Arguments& arguments, const char* name) {
  const c10::DeviceGuard guard(device);
  check_plugin((kernels_of(device).*kernel)(&arguments, stream_of(device)), name);
}

// LOCKSTEP_FLOAT32 or LOCKSTEP_BFLOAT16.
int32_t kernel_type(const at::Tensor& x);

// Null for what is undefined.
void* data_of(const at::Tensor& x);
float* floats_of(const at::Tensor& x);

at::Tensor scratch_of(at::Device device, size_t bytes);

// Rows of `columns` elements.
int64_t rows_of(const at::Tensor& x, int64_t columns);

// A tensor as an argument of a Function.
std::optional<at::Tensor> if_defined(const at::Tensor& x);

// Throws UsageError in a backward pass that is to be differentiated itself.
void refuse_second_derivatives(const char* function);

// A dropout that has drawn: `state` has seed and offset, on the device.
struct DrawnDropout {
  double probability = 0;
  int64_t site = 0;
  at::Tensor state;

  LockstepDropout arguments() const;
};
// Draws nothing for a probability of 0. Throws InternalError above kMostDropout.
DrawnDropout draw_dropout(double probability, at::Device device);

}  // namespace lockstep::device

#pragma once

// What the cases of kernels are made of.

#include <functional>
#include <vector>

#include <ATen/ATen.h>

#include "bench/gpu/kernel_cases.h"

namespace lockstep {

using KeptTensors = std::vector<at::Tensor>;  // while a case may run

int32_t type_of(at::ScalarType type);
float* floats_of(const at::Tensor& tensor);
double bytes_of(const at::Tensor& tensor);
LockstepDropout dropout_of(const at::Tensor& state, double probability);
void check_kernel(const char* error, const char* what);

// Tensors for a place. Small ones are drawn on the CPU, so that they are the same on every device.
class KernelTensors {
 public:
  explicit KernelTensors(const KernelPlace& place) : place_(place) {}

  at::Tensor matrix(int64_t rows, int64_t columns) const;  // of activations
  at::Tensor parameter(int64_t count) const;               // float32, around 1
  at::Tensor ids(int64_t count, int64_t limit) const;      // few come often, as words do
  at::Tensor dropout_state() const;
  at::Tensor floats(int64_t count) const;  // zeros
  at::Tensor bytes(size_t count) const;
  at::Tensor drawn(at::IntArrayRef sizes) const;
  at::TensorOptions float_options() const;

 private:
  KernelPlace place_;
};

// Calls the kernel with the arguments of a set. A kernel's member of the table tells which it is.
template <typename Arguments>
std::function<void(int)> runner(const KernelPlace& place,
                                const char* (*LockstepKernels::*kernel)(const Arguments*, void*),
                                std::vector<Arguments> calls, KeptTensors kept) {
  const LockstepKernels* kernels = place.kernels;
  return [=, calls = std::move(calls), kept = std::move(kept)](int set) {
    check_kernel((kernels->*kernel)(&calls[set], nullptr), "kernel");
  };
}

// Of optimizers and batch norm.
const std::vector<KernelEntry>& other_kernel_entries();

}  // namespace lockstep

#include "bench/gpu/kernel_tensors.h"

#include "device/plugin.h"

namespace lockstep {

int32_t type_of(at::ScalarType type) {
  return type == at::kFloat ? LOCKSTEP_FLOAT32 : LOCKSTEP_BFLOAT16;
}

float* floats_of(const at::Tensor& tensor) {
  return tensor.data_ptr<float>();
}

double bytes_of(const at::Tensor& tensor) {
  return static_cast<double>(tensor.nbytes());
}

LockstepDropout dropout_of(const at::Tensor& state, double probability) {
  return {.probability = static_cast<float>(probability),
          .site = 1,
          .state = reinterpret_cast<const uint64_t*>(state.data_ptr<int64_t>())};
}

void check_kernel(const char* error, const char* what) {
  device::check_plugin(error, what);
}

at::Tensor KernelTensors::drawn(at::IntArrayRef sizes) const {
  return place_.is_small ? at::randn(sizes).to(place_.device) : at::randn(sizes, float_options());
}

at::Tensor KernelTensors::matrix(int64_t rows, int64_t columns) const {
  if (place_.is_small) {
    return drawn({rows, columns}).to(place_.type);
  }
  return at::empty({rows, columns}, float_options().dtype(place_.type)).normal_();
}

at::Tensor KernelTensors::parameter(int64_t count) const {
  return drawn({count}) * 0.1 + 1;
}

at::Tensor KernelTensors::ids(int64_t count, int64_t limit) const {
  const double most = std::log(static_cast<double>(limit));
  const at::Tensor uniform = at::rand({count}, at::kDouble);
  return ((uniform * most).exp() - 1).to(at::kLong).clamp(0, limit - 1).to(place_.device);
}

at::Tensor KernelTensors::dropout_state() const {
  return at::tensor({1234567, 89}, at::kLong).to(place_.device);
}

at::Tensor KernelTensors::floats(int64_t count) const {
  return at::zeros({count}, float_options());
}

at::Tensor KernelTensors::bytes(size_t count) const {
  return at::empty({static_cast<int64_t>(count)}, float_options().dtype(at::kByte));
}

at::TensorOptions KernelTensors::float_options() const {
  return at::TensorOptions(place_.device).dtype(at::kFloat);
}

}  // namespace lockstep

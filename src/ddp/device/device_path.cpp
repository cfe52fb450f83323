#include "ddp/device/device_path.h"

#include <atomic>
#include <map>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

namespace lockstep::ddp {
namespace {

std::atomic<int> num_on_cpu{0};

}  // namespace

bool takes_device_path(at::Device device) {
  return !device.is_cpu() || num_on_cpu.load() > 0;
}

DevicePathOnCpu::DevicePathOnCpu() {
  ++num_on_cpu;
}
DevicePathOnCpu::~DevicePathOnCpu() {
  --num_on_cpu;
}

at::Tensor group_memory(Group& group, int64_t bytes, at::Device device) {
  return takes_device_path(device)
             ? at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).device(device))
             : group.allocate(bytes);
}

void rebind_memory(Group& group, const at::Tensor& memory) {
  if (!takes_device_path(memory.device())) {
    group.rebind(memory);
  }
}

void copy_all(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  struct Pairs {
    std::vector<at::Tensor> to;
    std::vector<at::Tensor> from;
  };
  std::map<at::ScalarType, Pairs> by_type;  // one operation takes tensors of one type
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i].numel() > 0) {
      Pairs& pairs = by_type[to[i].scalar_type()];
      pairs.to.push_back(to[i]);
      pairs.from.push_back(from[i]);
    }
  }
  for (const auto& [type, pairs] : by_type) {
    at::_foreach_copy_(pairs.to, pairs.from);
  }
}

at::Tensor upload(const at::Tensor& tensor, at::Device device) {
  if (device.is_cpu()) {
    return tensor.clone();
  }
  // From pageable memory the copy would first wait for all that is queued.
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

std::vector<double> norms_of(const std::vector<at::Tensor>& tensors) {
  std::vector<double> norms;
  if (tensors.empty()) {
    return norms;
  }
  if (!takes_device_path(tensors.front().device())) {
    for (const at::Tensor& tensor : tensors) {
      norms.push_back(at::linalg_vector_norm(tensor, 2).item<double>());
    }
    return norms;
  }
  std::vector<at::Tensor> wide;
  for (const at::Tensor& norm : at::_foreach_norm(tensors, 2)) {
    wide.push_back(norm.to(at::kDouble));
  }
  const at::Tensor read = at::stack(wide).to(at::kCPU);
  norms.assign(read.const_data_ptr<double>(), read.const_data_ptr<double>() + read.numel());
  return norms;
}

}  // namespace lockstep::ddp

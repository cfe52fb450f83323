#include "ddp/device/device_path.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
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

double norm_of(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) {
    return 0;
  }
  if (takes_device_path(tensors.front().device())) {
    return *queue_norm(tensors).to(at::kCPU).const_data_ptr<double>();
  }
  double sum = 0;
  for (const at::Tensor& tensor : tensors) {
    const auto norm = at::linalg_vector_norm(tensor, 2).item<double>();
    sum += norm * norm;
  }
  return std::sqrt(sum);
}

at::Tensor queue_norm(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> norms = at::_foreach_norm(tensors, 2);
  const bool is_one_type = std::all_of(norms.begin(), norms.end(), [&](const at::Tensor& norm) {
    return norm.scalar_type() == norms.front().scalar_type();
  });
  if (!is_one_type) {
    for (at::Tensor& norm : norms) {
      norm = norm.to(at::kDouble);
    }
  }
  return at::stack(norms).to(at::kDouble).square().sum().sqrt();
}

void queue_scale(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) {
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (const at::Tensor& tensor : tensors) {
    by_type[tensor.scalar_type()].push_back(tensor);
  }
  for (const auto& [type, same] : by_type) {
    if (type == at::kFloat || type == at::kDouble) {
      at::_foreach_mul_(same, factor.to(type));
      continue;
    }
    for (const at::Tensor& tensor : same) {  // 16 bits are too few for the factor
      tensor.copy_(tensor.to(at::kFloat).mul_(factor.to(at::kFloat)));
    }
  }
}

}  // namespace lockstep::ddp

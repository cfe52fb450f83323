#pragma once

// Gradients, buffers and states that are not in the host's memory. The host can neither read them
// nor share them with other ranks, so everything is done by tensor operations, which are queued on
// the device's current stream: nothing here waits for the device unless it says so.
//
// The same code runs on CPU tensors, where a test asks for it.

#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/group.h>

namespace lockstep::ddp {

// Whether tensors on `device` take this path. False for the CPU, whose path is faster: it uses
// shared memory, allocates where it reduces, and reads what it needs.
bool takes_device_path(at::Device device);

// While it lives, the CPU's tensors of this process take this path too. It is for tests, and must
// live longer than all that is made meanwhile.
class DevicePathOnCpu {
 public:
  DevicePathOnCpu();
  ~DevicePathOnCpu();
  DevicePathOnCpu(const DevicePathOnCpu&) = delete;
  DevicePathOnCpu& operator=(const DevicePathOnCpu&) = delete;
};

// Zeros that the group will reduce, gather or broadcast: on the CPU the group's own memory, which
// is collective, on a device ordinary memory of this rank.
at::Tensor group_memory(Group& group, int64_t bytes, at::Device device);
// Collective on the CPU. For another group, at the same address.
void rebind_memory(Group& group, const at::Tensor& memory);

// Copies from[i] to to[i], in few operations however many there are. The devices are the same.
void copy_all(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from);

// The values of a CPU tensor on `device`.
at::Tensor upload(const at::Tensor& tensor, at::Device device);

// The norm of dense tensors together. Waits for the device, once.
double norm_of(const std::vector<at::Tensor>& tensors);
// The same number on the device, float64 of no dimension, without waiting. There is a tensor.
at::Tensor queue_norm(const std::vector<at::Tensor>& tensors);

// Multiplies dense tensors by a number on their device, of the bits that a number of the host has.
void queue_scale(const std::vector<at::Tensor>& tensors, const at::Tensor& factor);

}  // namespace lockstep::ddp

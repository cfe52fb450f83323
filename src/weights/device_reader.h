#pragma once

// The bytes of a device's tensors, in order, through two pinned buffers: while one is used, the
// next is copied.

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "device/copies.h"

namespace lockstep::weights {

class DeviceReader {
 public:
  using Take = std::function<void(std::span<const std::byte>)>;

  // `user` is named in errors: "cannot write model.safetensors".
  DeviceReader(at::Device device, std::string user);

  at::Device device() const { return device_; }

  // Hands the bytes to `take`, part by part; the tensor is as the caller's current stream leaves
  // it. Throws UsageError if there is no memory for the copies.
  void read(const at::Tensor& contiguous, const Take& take);

 private:
  static constexpr int64_t kSlotBytes = 4 << 20;
  static constexpr size_t kNumSlots = 2;

  const at::Device device_;
  const std::string user_;
  at::Tensor slots_[kNumSlots];
  const std::unique_ptr<device::Copies> copies_;  // last: it ends its copies first
};

}  // namespace lockstep::weights

#pragma once

// Memory for what goes between a device and the host, and the copies of a tensor's device. A seam:
// tests put other copies in the place of the CPU's, so that what is written against these functions
// is tested where there is no device.

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "device/copies.h"

namespace lockstep::device {

// Whether the host can read and write such memory only by Copies. False for the CPU.
bool needs_copies(at::Device device);

// Dense, and where lockstep can read and write it: on the CPU or a GPU.
bool is_dense(const at::Tensor& tensor);

std::unique_ptr<Copies> copies_of(at::Device device);

// While it lives, the CPU's tensors of this process need copies too, and get these. For tests; it
// must live longer than all that is made meanwhile.
class CopiesOnCpu {
 public:
  using Make = std::function<std::unique_ptr<Copies>(at::Device)>;
  explicit CopiesOnCpu(Make make);
  ~CopiesOnCpu();
  CopiesOnCpu(const CopiesOnCpu&) = delete;
  CopiesOnCpu& operator=(const CopiesOnCpu&) = delete;
};

// The tensor that `make` returns, which is `bytes` large and on `device`. Where there is no memory
// for it, throws a UsageError that says who wanted it ("checkpoint: tensor w"), how much it is and
// how much is free.
struct Wanted {
  std::string_view user;
  at::Device device = at::kCPU;
  uint64_t bytes = 0;
};
at::Tensor with_memory(const Wanted& wanted, const std::function<at::Tensor()>& make);

// What the host could still give to programs, in bytes; nothing if it does not say.
std::optional<uint64_t> available_on_host();

// Memory of the host that is fast to copy from and to: Copies::host_memory(), with the same error.
at::Tensor pinned_memory(Copies& copies, std::string_view user, uint64_t bytes);

// A contiguous tensor as its bytes.
at::Tensor bytes_of(const at::Tensor& contiguous);

}  // namespace lockstep::device

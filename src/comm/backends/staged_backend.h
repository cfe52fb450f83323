#pragma once

// Tensors of a GPU, carried by a backend that moves tensors of the CPU. They go through pinned
// memory in pieces: while one piece is exchanged between the ranks, the next is copied to the host
// and the one before it back to the device. What the ranks add is added on the host, in the order
// of the backend beneath, so the bits are those of CPU tensors.
//
// Everything is ordered by streams: an operation reads its tensors after what the caller's current
// stream had been given when it was started, and wait() lets the waiter's current stream go on
// after the last copy; the host waits only for the exchange.

#include <functional>
#include <memory>

#include "comm/backends/backend.h"
#include "device/copies.h"

namespace lockstep::comm {

struct StagedOptions {
  std::shared_ptr<Backend> carrier;
  std::function<std::unique_ptr<device::Copies>(at::Device)> make_copies = device::make_copies;
  // Which tensors are staged; all others go to the carrier as they are.
  std::function<bool(const at::Tensor&)> is_staged = [](const at::Tensor& tensor) {
    return tensor.is_cuda();
  };
  int64_t piece_bytes = 4 << 20;
};

// Calls of both kinds keep one order. Until the first tensor of a GPU comes, it costs nothing.
std::shared_ptr<Backend> make_staged_backend(StagedOptions options);

}  // namespace lockstep::comm

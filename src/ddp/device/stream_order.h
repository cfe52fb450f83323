#pragma once

// Autograd calls hooks on whichever stream a parameter's gradient was made, and ends a backward on
// the stream of its caller. What the hooks do to one bucket must happen in the order in which they
// were called, whatever the streams.

#include <memory>

#include <ATen/core/Tensor.h>

namespace lockstep::ddp {

// Hands the order on from stream to stream, as a baton. On the CPU there are no streams, and it
// does nothing. Threads: one at a time.
class StreamOrder {
 public:
  StreamOrder();
  ~StreamOrder();
  StreamOrder(StreamOrder&&) noexcept;
  StreamOrder& operator=(StreamOrder&&) noexcept;

  // The memory that the streams share; it is not given to anybody else before they are done.
  void watch(const at::Tensor& memory);

  // What the calling thread queues from here on comes after all that was queued by the callers
  // before. Does not wait.
  void join();

 private:
  struct State;
  std::unique_ptr<State> state_;  // null on the CPU
};

}  // namespace lockstep::ddp

#pragma once

// Several stacks on one thread, each run until it gives the processor back: what a scheduler that
// decides every step is made of.

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include <ucontext.h>

namespace lockstep::shm::test {

// Not thread-safe. A fiber that has not ended may be restarted or destroyed: its stack is forgotten
// without running destructors, so its body must own nothing.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void start(const std::function<void()>* body);
  void resume();  // from outside; returns when the fiber yields or has ended
  void yield();   // from inside
  bool has_ended() const { return has_ended_; }

 private:
  static constexpr size_t kStackBytes = 256 << 10;
  using ExceptionState = std::array<void*, 2>;  // of the C++ runtime, one per thread

  static void enter(unsigned low, unsigned high);
  void exchange_exceptions();

  std::unique_ptr<char[]> stack_;
  ucontext_t inside_{};
  ucontext_t outside_{};
  const std::function<void()>* body_ = nullptr;
  bool has_ended_ = true;
  ExceptionState exceptions_{};
  // For AddressSanitizer, which must be told of every change of stacks.
  void* fake_stack_ = nullptr;
  const void* outer_stack_ = nullptr;
  size_t outer_bytes_ = 0;
};

}  // namespace lockstep::shm::test

#include "shm/fiber.h"

#include <algorithm>
#include <cstdint>

#include <cxxabi.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace lockstep::shm::test {

Fiber::Fiber() : stack_(std::make_unique<char[]>(kStackBytes)) {}

Fiber::~Fiber() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_.get(), kStackBytes);
#endif
}

void Fiber::start(const std::function<void()>* body) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_.get(), kStackBytes);
  fake_stack_ = nullptr;
#endif
  body_ = body;
  has_ended_ = false;
  exceptions_ = {};
  ::getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_.get();
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);
  ::makecontext(&inside_, reinterpret_cast<void (*)()>(&Fiber::enter), 2,
                static_cast<unsigned>(self), static_cast<unsigned>(self >> 32));
}

// A destructor that runs while an exception passes may be a step of the model, and the next fiber
// may throw as well: each keeps its own chain of exceptions.
void Fiber::exchange_exceptions() {
  auto* const current = reinterpret_cast<ExceptionState*>(abi::__cxa_get_globals());
  std::swap(*current, exceptions_);
}

void Fiber::resume() {
  exchange_exceptions();
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, stack_.get(), kStackBytes);
#endif
  ::swapcontext(&outside_, &inside_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  exchange_exceptions();
}

void Fiber::yield() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(has_ended_ ? nullptr : &fake_stack_, outer_stack_, outer_bytes_);
#endif
  ::swapcontext(&inside_, &outside_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &outer_stack_, &outer_bytes_);
#endif
}

void Fiber::enter(unsigned low, unsigned high) {
  auto* const self =
      reinterpret_cast<Fiber*>(static_cast<uintptr_t>(low) | static_cast<uintptr_t>(high) << 32);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->outer_stack_, &self->outer_bytes_);
#endif
  (*self->body_)();
  self->has_ended_ = true;
  self->yield();
}

}  // namespace lockstep::shm::test

#pragma once

// Atomics and sleeping, as the protocol sees them. The tests put a model in its place, which runs
// the same protocol under every order of steps.

#include <atomic>
#include <cstdint>

#include "base/deadline.h"

namespace lockstep::shm {

// How long a waiting rank stays awake before it sleeps in the kernel.
struct WaitPolicy {
  std::chrono::nanoseconds awake{0};
  // Give the core away between looks. With more ranks than cores the rank that is waited for may
  // need this very core; spinning there made small operations 10 to 20 times slower.
  bool yields = false;

  // Ranks that have a core each spin for a millisecond: nobody else needs their cores, and to wake
  // a sleeper takes 50 us and more. More ranks than cores yield for 500 us.
  static WaitPolicy for_ranks(int num_ranks, int num_cores);
};

struct Platform {
  template <typename T>
  using Atomic = std::atomic<T>;

  // Sleeps while `word` holds `expected`; returns at a wake, at the deadline, or for no reason.
  // Works between processes that map the word at different addresses.
  static void sleep(std::atomic<uint32_t>& word, uint32_t expected, base::Deadline deadline);
  static void wake_all(std::atomic<uint32_t>& word);

  // Between two looks at what is waited for.
  static void pause();
  static void yield();
};

}  // namespace lockstep::shm

#include "shm/platform.h"

#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;

constexpr auto kSpinTime = 1ms;
constexpr auto kYieldTime = 500us;

static_assert(std::atomic<uint32_t>::is_always_lock_free &&
                  std::atomic<uint64_t>::is_always_lock_free,
              "the protocol's words are shared between processes");

uint32_t* futex_address(std::atomic<uint32_t>& word) {
  return reinterpret_cast<uint32_t*>(&word);
}

}  // namespace

WaitPolicy WaitPolicy::for_ranks(int num_ranks, int num_cores) {
  if (num_ranks <= num_cores) {
    return {.awake = kSpinTime, .yields = false};
  }
  return {.awake = kYieldTime, .yields = true};
}

void Platform::sleep(std::atomic<uint32_t>& word, uint32_t expected, base::Deadline deadline) {
  timespec until{};
  timespec* limit = nullptr;
  if (!deadline.is_never()) {
    const auto when = deadline.when().time_since_epoch();  // steady_clock is CLOCK_MONOTONIC
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(when);
    until.tv_sec = seconds.count();
    until.tv_nsec = std::chrono::nanoseconds(when - seconds).count();
    limit = &until;
  }
  // Not FUTEX_PRIVATE: other processes wake it. The bitset form takes an absolute time.
  ::syscall(SYS_futex, futex_address(word), FUTEX_WAIT_BITSET, expected, limit, nullptr,
            FUTEX_BITSET_MATCH_ANY);
}

void Platform::wake_all(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, futex_address(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Platform::pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void Platform::yield() {
  ::sched_yield();
}

}  // namespace lockstep::shm

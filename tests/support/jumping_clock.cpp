// A host whose clock is set again and again, as by an administrator or after a suspended night: to
// be preloaded (LD_PRELOAD) into every process of a job. What the clocks that only go forward say
// stays true, and so do the waits of the kernel; the time of day jumps by hours, both ways, many
// times a second.

#include <cstdint>
#include <ctime>
#include <iterator>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

namespace {

constexpr int64_t kPeriodMs = 40;
constexpr int64_t kJumps[] = {0, 3600, -7200, 86400, -60, 5};  // seconds

int ask_kernel(clockid_t clock, timespec* now) {
  return static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
}

int64_t jump() {
  timespec now{};
  ask_kernel(CLOCK_MONOTONIC, &now);
  const int64_t ms = now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
  return kJumps[ms / kPeriodMs % static_cast<int64_t>(std::size(kJumps))];
}

bool is_time_of_day(clockid_t clock) {
  return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) {
  const int result = ask_kernel(clock, now);
  if (result == 0 && is_time_of_day(clock)) {
    now->tv_sec += jump();
  }
  return result;
}

int gettimeofday(timeval* __restrict now, void* __restrict /*zone*/) {
  timespec fine{};
  const int result = clock_gettime(CLOCK_REALTIME, &fine);
  now->tv_sec = fine.tv_sec;
  now->tv_usec = fine.tv_nsec / 1000;
  return result;
}

time_t time(time_t* now) {
  timespec fine{};
  clock_gettime(CLOCK_REALTIME, &fine);
  if (now != nullptr) {
    *now = fine.tv_sec;
  }
  return fine.tv_sec;
}

}  // extern "C"

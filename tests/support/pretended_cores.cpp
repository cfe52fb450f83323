#include "support/pretended_cores.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep::test {
namespace {

std::vector<int>& pretended() {
  static std::vector<int> cores;
  return cores;
}

}  // namespace

void pretend_cores(std::vector<int> cores) {
  pretended() = std::move(cores);
}

}  // namespace lockstep::test

extern "C" int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t* set) noexcept {
  CPU_ZERO_S(bytes, set);
  if (lockstep::test::pretended().empty()) {
    return ::syscall(SYS_sched_getaffinity, pid, bytes, set) < 0 ? -1 : 0;
  }
  for (const int core : lockstep::test::pretended()) {
    CPU_SET_S(static_cast<size_t>(core), bytes, set);
  }
  return 0;
}

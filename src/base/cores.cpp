#include "base/cores.h"

#include <sched.h>

namespace lockstep {

int current_core() {
  return ::sched_getcpu();
}

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) {
        cores.push_back(core);
      }
    }
  }
  return cores;
}

bool stay_on_core(int core) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(core, &only);
  return ::sched_setaffinity(0, sizeof only, &only) == 0;
}

void move_to_core(int core) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_ISSET(core, &allowed) &&
      stay_on_core(core)) {
    ::sched_setaffinity(0, sizeof allowed, &allowed);
  }
}

}  // namespace lockstep

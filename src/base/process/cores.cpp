#include "base/process/cores.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <sched.h>

#include "base/process/cpu_quota.h"

namespace lockstep::base {

namespace {

// A set of cores of any size: hosts may have more than a cpu_set_t has bits.
class CoreSet {
 public:
  explicit CoreSet(size_t num_cores) : num_cores_(num_cores), set_(CPU_ALLOC(num_cores)) {
    CPU_ZERO_S(bytes(), set_.get());
  }

  void add(size_t core) { CPU_SET_S(core, bytes(), set_.get()); }
  bool has(size_t core) const { return CPU_ISSET_S(core, bytes(), set_.get()); }
  size_t num_cores() const { return num_cores_; }

  // Copy the affinity of the calling thread into the set and back.
  bool read() { return ::sched_getaffinity(0, bytes(), set_.get()) == 0; }
  bool write() const { return ::sched_setaffinity(0, bytes(), set_.get()) == 0; }

 private:
  struct Free {
    void operator()(cpu_set_t* set) const { CPU_FREE(set); }
  };

  size_t bytes() const { return CPU_ALLOC_SIZE(num_cores_); }

  size_t num_cores_;
  std::unique_ptr<cpu_set_t, Free> set_;
};

// The kernel refuses a set that is smaller than its own.
std::optional<CoreSet> allowed_set() {
  for (size_t num_cores = CPU_SETSIZE; num_cores <= 64 * CPU_SETSIZE; num_cores *= 2) {
    if (CoreSet set(num_cores); set.read()) {
      return set;
    }
  }
  return std::nullopt;
}

}  // namespace

int current_core() {
  return ::sched_getcpu();
}

std::vector<int> usable_cores() {
  std::vector<int> cores;
  if (const auto allowed = allowed_set()) {
    for (size_t core = 0; core < allowed->num_cores(); ++core) {
      if (allowed->has(core)) {
        cores.push_back(static_cast<int>(core));
      }
    }
  }
  return cores;
}

int num_usable_cores() {
  const CpuQuota quota = cpu_quota();
  return cores_within(static_cast<int>(usable_cores().size()), {&quota, 1});
}

CoreBits usable_core_bits() {
  CoreBits bits;
  for (const int core : usable_cores()) {
    if (static_cast<size_t>(core) < bits.size()) {
      bits.set(static_cast<size_t>(core));
    }
  }
  return bits;
}

bool stay_on_core(int core) {
  CoreSet only(static_cast<size_t>(core) + 1);
  only.add(static_cast<size_t>(core));
  return only.write();
}

void move_to_core(int core) {
  const auto allowed = allowed_set();
  if (allowed && allowed->has(static_cast<size_t>(core)) && stay_on_core(core)) {
    allowed->write();
  }
}

}  // namespace lockstep::base

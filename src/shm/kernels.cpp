#include "shm/kernels.h"

#include <optional>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "shm/kernels_isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace lockstep::shm {
namespace {

constexpr const char* kIsaVariable = "LOCKSTEP_SHM_ISA";

struct Isa {
  const char* name;
  ReduceKernel (*find)(const KernelKey& key);
};

#if defined(__x86_64__)
// Not __builtin_cpu_supports, for which clang 14 does not know this one. That the system saves the
// registers is known from "avx2".
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

// Those this processor can run, the best last.
std::vector<Isa> runnable_isas() {
  std::vector<Isa> isas = {{"baseline", find_baseline_kernel}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && has_f16c()) {
    isas.push_back({"avx2", find_avx2_kernel});
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    isas.push_back({"avx512", find_avx512_kernel});
  }
#endif
  return isas;
}

std::optional<Isa> isa_named(const std::string& name) {
  for (const Isa& isa : runnable_isas()) {
    if (name == isa.name) {
      return isa;
    }
  }
  return std::nullopt;
}

Isa choose_isa() {
  const auto name = base::Env().text(kIsaVariable);
  if (!name) {
    return runnable_isas().back();
  }
  if (const auto isa = isa_named(*name)) {
    return *isa;
  }
  throw UsageError("shm: {}={}, but this processor runs {}; unset it to take the last of these",
                   kIsaVariable, *name, fmt::join(available_isas(), ", "));
}

const Isa& best_isa() {
  static const Isa isa = choose_isa();
  return isa;
}

ReduceKernel find_kernel(const KernelKey& key, const Isa& isa) {
  const ReduceKernel kernel = isa.find(key);
  LOCKSTEP_CHECK(kernel != nullptr, "no kernel from type {} to type {} for reduction {}",
                 static_cast<int>(key.from), static_cast<int>(key.to),
                 static_cast<int>(key.reduction));
  return kernel;
}

}  // namespace

ReduceKernel find_kernel(const KernelKey& key) {
  return find_kernel(key, best_isa());
}

ReduceKernel find_kernel(const KernelKey& key, const std::string& isa) {
  const auto named = isa_named(isa);
  LOCKSTEP_CHECK(named, "this processor does not run \"{}\"", isa);
  return find_kernel(key, *named);
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Isa& isa : runnable_isas()) {
    names.emplace_back(isa.name);
  }
  return names;
}

std::string chosen_isa() {
  return best_isa().name;
}

}  // namespace lockstep::shm

#include "comm/start/host_cores.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>

#include "base/network.h"
#include "base/process/cores.h"
#include "base/process/cpu_quota.h"
#include "base/unique_fd.h"

namespace lockstep::comm {
namespace {

struct RankCores {
  char machine[64] = {};
  base::CoreBits cores;
  base::CpuQuota quota;
};

std::string machine_id() {
  try {
    return base::read_file("/proc/sys/kernel/random/boot_id", 4096);
  } catch (const IoError&) {
    return base::host_name();  // a sandbox without it
  }
}

RankCores own_cores() {
  RankCores own{.cores = base::usable_core_bits(), .quota = base::cpu_quota()};
  machine_id().copy(own.machine, sizeof own.machine - 1);
  return own;
}

}  // namespace

std::vector<HostCores> host_cores(Group& group) {
  const auto bytes = static_cast<int64_t>(sizeof(RankCores));
  const RankCores own = own_cores();
  const at::Tensor input = at::empty({bytes}, at::kByte);
  const at::Tensor output = at::empty({bytes * group.size()}, at::kByte);
  std::memcpy(input.mutable_data_ptr(), &own, sizeof own);
  group.all_gather(output, input);

  std::vector<RankCores> ranks(static_cast<size_t>(group.size()));
  std::memcpy(ranks.data(), output.const_data_ptr(), static_cast<size_t>(output.numel()));
  struct Machine {
    base::CoreBits cores;
    std::vector<base::CpuQuota> quotas;
  };
  std::map<std::string, Machine> machines;
  for (const RankCores& rank : ranks) {
    Machine& machine = machines[rank.machine];
    machine.cores |= rank.cores;
    machine.quotas.push_back(rank.quota);
  }
  std::vector<HostCores> hosts;
  for (const RankCores& rank : ranks) {
    const Machine& machine = machines[rank.machine];
    const int num_cores = static_cast<int>(machine.cores.count());
    hosts.push_back({.num_cores = base::cores_within(num_cores, machine.quotas),
                     .num_ranks = static_cast<int>(machine.quotas.size())});
  }
  return hosts;
}

}  // namespace lockstep::comm

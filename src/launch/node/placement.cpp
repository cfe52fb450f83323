#include "launch/node/placement.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <sched.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "launch/node/gpus.h"

namespace lockstep::launch {

namespace {

using Cores = std::vector<const HostCore*>;

Cores cores_where(const HostTopology& host, int HostCore::*field, int value) {
  Cores cores;
  for (const HostCore& core : host.cores) {
    if (core.*field == value) {
      cores.push_back(&core);
    }
  }
  return cores;
}

RankPlacement on_cores(const Cores& cores) {
  RankPlacement placement{.num_cores = static_cast<int>(cores.size())};
  for (const HostCore* core : cores) {
    placement.cpus.insert(placement.cpus.end(), core->cpus.begin(), core->cpus.end());
  }
  std::sort(placement.cpus.begin(), placement.cpus.end());
  return placement;
}

// A core of each rank's NUMA node.
Cores find_homes(int num_ranks, const HostTopology& host, const std::vector<int>& gpu_nodes) {
  Cores homes;
  for (size_t r = 0; r < static_cast<size_t>(num_ranks); ++r) {
    const int node = r < gpu_nodes.size() ? gpu_nodes[r] : -1;
    const Cores near = cores_where(host, &HostCore::numa_node, node);
    homes.push_back(!near.empty()
                        ? near.front()
                        : &host.cores[r * host.cores.size() / static_cast<size_t>(num_ranks)]);
  }
  return homes;
}

struct Neighbours {
  int before = 0;  // ranks of the same NUMA node that come before this one
  int all = 0;     // of the same NUMA node, with this one
};

Neighbours neighbours_of(size_t rank, const Cores& homes) {
  Neighbours count;
  for (size_t r = 0; r < homes.size(); ++r) {
    if (homes[r]->numa_node == homes[rank]->numa_node) {
      count.before += r < rank ? 1 : 0;
      ++count.all;
    }
  }
  return count;
}

// The rank's part of the cores of its NUMA node; parts differ by one core at most.
Cores own_cores(const HostTopology& host, int numa_node, const Neighbours& ranks) {
  const Cores near = cores_where(host, &HostCore::numa_node, numa_node);
  const size_t all = static_cast<size_t>(ranks.all), before = static_cast<size_t>(ranks.before);
  const size_t base = near.size() / all, extra = near.size() % all;
  const size_t begin = before * base + std::min(before, extra);
  const size_t size = base + (before < extra ? 1 : 0);
  return {near.begin() + static_cast<std::ptrdiff_t>(begin),
          near.begin() + static_cast<std::ptrdiff_t>(begin + size)};
}

Cores core_complex(const HostTopology& host, int numa_node, const Neighbours& ranks) {
  std::map<int, Cores> by_cache;
  for (const HostCore* core : cores_where(host, &HostCore::numa_node, numa_node)) {
    by_cache[core->cache].push_back(core);
  }
  std::vector<Cores> complexes;
  for (auto& [cache, cores] : by_cache) {
    complexes.push_back(std::move(cores));
  }
  // Where the cpuset cuts a cache's cores off, the fuller ones come first.
  std::stable_sort(complexes.begin(), complexes.end(),
                   [](const Cores& a, const Cores& b) { return a.size() > b.size(); });
  return complexes[static_cast<size_t>(ranks.before) % complexes.size()];
}

Cores choose_cores(BindMode mode, const HostTopology& host, const HostCore& home,
                   const Neighbours& ranks) {
  switch (mode) {
    case BindMode::Numa:
      return cores_where(host, &HostCore::numa_node, home.numa_node);
    case BindMode::Socket:
      return cores_where(host, &HostCore::package, home.package);
    case BindMode::CoreComplex:
      return core_complex(host, home.numa_node, ranks);
    default:
      return own_cores(host, home.numa_node, ranks);
  }
}

const char* name_of(BindMode mode) {
  switch (mode) {
    case BindMode::Numa:
      return "all cores of its NUMA node";
    case BindMode::Socket:
      return "all cores of its package";
    case BindMode::CoreComplex:
      return "cores that share a cache";
    default:
      return "cores of its own";
  }
}

// Ranks on the same cores share them, and so the threads that they should start.
void share_cores(std::vector<RankPlacement>& ranks) {
  std::map<std::vector<int>, int> users;
  for (const RankPlacement& rank : ranks) {
    ++users[rank.cpus];
  }
  for (RankPlacement& rank : ranks) {
    rank.num_cores = std::max(1, rank.num_cores / users[rank.cpus]);
  }
}

}  // namespace

BindMode parse_bind(const std::string& text) {
  static const std::map<std::string, BindMode> kModes = {{"auto", BindMode::Auto},
                                                         {"none", BindMode::None},
                                                         {"core", BindMode::Core},
                                                         {"numa", BindMode::Numa}};
  const auto mode = kModes.find(text);
  if (mode == kModes.end()) {
    throw UsageError("--bind {} is unknown; it is auto, none, core or numa", text);
  }
  return mode->second;
}

BindMode parse_numa_binding(const std::string& text) {
  static const std::map<std::string, BindMode> kModes = {{"node", BindMode::Numa},
                                                         {"socket", BindMode::Socket},
                                                         {"exclusive", BindMode::Core},
                                                         {"core-complex", BindMode::CoreComplex}};
  const auto mode = kModes.find(text);
  if (mode == kModes.end()) {
    throw UsageError("--numa-binding {} is unknown; it is node, socket, exclusive or core-complex",
                     text);
  }
  return mode->second;
}

Placement place_ranks(BindMode mode, int num_ranks, const HostTopology& host,
                      const std::vector<int>& gpu_numa_nodes) {
  Placement placement;
  placement.ranks.resize(static_cast<size_t>(num_ranks));
  if (mode == BindMode::None) {
    return placement;
  }
  const Cores homes = find_homes(num_ranks, host, gpu_numa_nodes);
  std::vector<RankPlacement> ranks;
  for (size_t r = 0; r < homes.size(); ++r) {
    ranks.push_back(on_cores(choose_cores(mode, host, *homes[r], neighbours_of(r, homes))));
  }
  const bool has_idle = std::any_of(ranks.begin(), ranks.end(),
                                    [](const RankPlacement& rank) { return rank.cpus.empty(); });
  const std::string counts = fmt::format("{} ranks, {} cores", num_ranks, host.cores.size());
  if (has_idle && mode != BindMode::Auto) {
    throw UsageError(
        "{}: a rank would have no core of its own; --bind numa shares cores, --bind none lets the "
        "kernel choose",
        counts);
  }
  if (has_idle) {
    placement.reason = counts + ": not bound, since ranks outnumber the cores near them";
    return placement;
  }
  share_cores(ranks);
  placement.ranks = std::move(ranks);
  placement.reason = fmt::format("{}: each rank bound to {}", counts, name_of(mode));
  return placement;
}

std::vector<int> numa_nodes_by_rank(const std::vector<int>& gpu_nodes, int num_ranks, bool share) {
  std::vector<int> nodes = gpu_nodes;
  while (share && !gpu_nodes.empty() && nodes.size() < static_cast<size_t>(num_ranks)) {
    nodes.push_back(gpu_nodes[nodes.size() % gpu_nodes.size()]);
  }
  return nodes;
}

Placement place_on_this_host(const PlacementOptions& options, int num_ranks) {
  if (options.bind == BindMode::None) {
    return place_ranks(options.bind, num_ranks, {});
  }
  Placement placement = place_ranks(
      options.bind, num_ranks, read_topology(),
      numa_nodes_by_rank(gpu_numa_nodes("", visible_devices()), num_ranks, options.share_gpu));
  static std::string said;  // once: the ranks may be started many times
  if (said != placement.reason) {
    said = placement.reason;
    log::info("launch", "{}", said);
  }
  return placement;
}

int bind_to_cpus(const std::vector<int>& cpus) {
  if (cpus.empty()) {
    return 0;
  }
  const size_t num_cpus = static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end())) + 1;
  cpu_set_t* set = CPU_ALLOC(num_cpus);
  const size_t bytes = CPU_ALLOC_SIZE(num_cpus);
  CPU_ZERO_S(bytes, set);
  for (const int cpu : cpus) {
    CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  }
  const int error = ::sched_setaffinity(0, bytes, set) == 0 ? 0 : errno;
  CPU_FREE(set);
  return error;
}

}  // namespace lockstep::launch

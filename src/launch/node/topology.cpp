#include "launch/node/topology.h"

#include <cerrno>
#include <memory>

#include <hwloc.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep::launch {

namespace {

using Topology = std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)>;

Topology load(const std::string& synthetic) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    throw IoError("hwloc cannot start: {}", base::errno_text(errno));
  }
  Topology topology(raw, hwloc_topology_destroy);
  if (!synthetic.empty() && hwloc_topology_set_synthetic(raw, synthetic.c_str()) != 0) {
    throw IoError("hwloc does not understand the topology {}", synthetic);
  }
  if (hwloc_topology_load(raw) != 0) {
    throw IoError("hwloc cannot read the host's topology: {}; --bind none does without",
                  base::errno_text(errno));
  }
  return topology;
}

// hwloc leaves out what the cgroup forbids; what sched_setaffinity forbids comes off here.
Bitmap allowed_cpus(hwloc_topology_t topology, const TopologyOptions& options) {
  Bitmap allowed(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  hwloc_bitmap_copy(allowed.get(), hwloc_topology_get_allowed_cpuset(topology));
  Bitmap only(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  for (const int cpu : options.only) {
    hwloc_bitmap_set(only.get(), static_cast<unsigned>(cpu));
  }
  if (options.synthetic.empty() &&
      hwloc_get_cpubind(topology, only.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    throw IoError("cannot read this process's affinity: {}", base::errno_text(errno));
  }
  if (hwloc_bitmap_iszero(only.get()) == 0) {
    hwloc_bitmap_and(allowed.get(), allowed.get(), only.get());
  }
  return allowed;
}

int package_of(hwloc_topology_t topology, hwloc_obj_t core) {
  const hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, core);
  return package != nullptr ? static_cast<int>(package->logical_index) : 0;
}

int numa_node_of(hwloc_topology_t topology, hwloc_obj_t core) {
  const int node = hwloc_bitmap_first(core->nodeset);
  const hwloc_obj_t object =
      node < 0 ? nullptr
               : hwloc_get_numanode_obj_by_os_index(topology, static_cast<unsigned>(node));
  return object != nullptr ? static_cast<int>(object->os_index) : 0;
}

int cache_of(hwloc_obj_t core) {
  int cache = -1;
  for (hwloc_obj_t object = core->parent; object != nullptr; object = object->parent) {
    if (hwloc_obj_type_is_dcache(object->type) != 0) {
      cache = static_cast<int>(object->logical_index);  // the last one found is the largest
    }
  }
  return cache;
}

}  // namespace

HostTopology read_topology(const TopologyOptions& options) {
  const Topology topology = load(options.synthetic);
  const Bitmap allowed = allowed_cpus(topology.get(), options);
  HostTopology host;
  // Some virtual machines do not tell their cores.
  const bool has_cores = hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_CORE) > 0;
  const hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  hwloc_obj_t core = nullptr;
  while ((core = hwloc_get_next_obj_by_type(topology.get(), type, core)) != nullptr) {
    HostCore entry{.package = package_of(topology.get(), core),
                   .numa_node = numa_node_of(topology.get(), core),
                   .cache = cache_of(core)};
    for (int cpu = hwloc_bitmap_next(core->cpuset, -1); cpu >= 0;
         cpu = hwloc_bitmap_next(core->cpuset, cpu)) {
      if (hwloc_bitmap_isset(allowed.get(), static_cast<unsigned>(cpu)) != 0) {
        entry.cpus.push_back(cpu);
      }
    }
    if (!entry.cpus.empty()) {
      host.cores.push_back(std::move(entry));
    }
  }
  if (host.cores.empty()) {
    throw IoError("hwloc finds no core that this process may use; --bind none does without");
  }
  return host;
}

}  // namespace lockstep::launch

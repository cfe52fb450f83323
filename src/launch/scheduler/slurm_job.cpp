#include "launch/scheduler/slurm_job.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/network.h"
#include "base/process/fork.h"
#include "base/process/process.h"
#include "base/secret.h"
#include "base/unique_fd.h"

namespace lockstep::launch {

namespace {

constexpr int kNumPorts = 16;

}  // namespace

void join_slurm_step(const SlurmPlace& place, LaunchOptions& options) {
  options.rendezvous.job_id = fmt::format("slurm-{}.{}", place.job_id, place.step_id);
  if (place.num_nodes == 1) {
    return;
  }
  options.min_nodes = options.max_nodes = place.num_nodes;
  options.rendezvous.endpoint =
      fmt::format("{}:{}", place.hosts.front(), base::port_for(options.rendezvous.job_id));
  options.rendezvous.num_ports = kNumPorts;
  options.rendezvous.is_head = place.node == 0;
  options.rendezvous.node_rank = place.node;
  options.head_is_heard = true;  // srun brings the output of all nodes together
}

int slurm_procs_per_node(const SlurmPlace& place, int num_cores) {
  if (place.gpus_on_node.value_or(0) > 0) {
    return *place.gpus_on_node;
  }
  return std::max(1, std::min(num_cores, place.cpus_on_node.value_or(num_cores)));
}

void become_srun(int num_nodes, const std::vector<std::string>& arguments) {
  const std::vector<std::string> command = srun_command(
      {.num_nodes = num_nodes, .program = base::own_program(), .arguments = arguments});
  if (!base::Env().has("LOCKSTEP_JOB_SECRET")) {
    ::setenv("LOCKSTEP_JOB_SECRET", base::make_secret().c_str(), 1);
  }
  const int error = base::execute(command, base::own_environment());
  throw IoError("this is a Slurm job of {} nodes, and srun cannot be started: {}", num_nodes,
                base::errno_text(error));
}

}  // namespace lockstep::launch

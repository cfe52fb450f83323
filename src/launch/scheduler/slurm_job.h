#pragma once

// `lockstep run` under Slurm without flags: srun's tasks become the nodes of one job.

#include <string>
#include <vector>

#include "launch/launch.h"
#include "launch/scheduler/slurm.h"

namespace lockstep::launch {

// Makes this `lockstep run` the node of the job that srun made it: the first node is the head, at a
// port computed from the job and step, or one of the next 15 if that is taken.
void join_slurm_step(const SlurmPlace& place, LaunchOptions& options);

// Ranks on this node where the user does not say: a GPU each, else a core each.
int slurm_procs_per_node(const SlurmPlace& place, int num_cores);

// From a batch script: replaces this process by the srun that starts it on every node, with the
// job's secret in the environment, which Slurm carries over its own authenticated channel. Returns
// only by throwing IoError.
[[noreturn]] void become_srun(int num_nodes, const std::vector<std::string>& arguments);

}  // namespace lockstep::launch

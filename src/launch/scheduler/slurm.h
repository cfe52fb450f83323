#pragma once

// What Slurm says about where this process runs. Only SLURM_* is read: an inherited RANK or
// MASTER_ADDR may be a login shell's or a site's container hook's.

#include <optional>
#include <string>
#include <vector>

#include "base/env.h"

namespace lockstep::launch {

// Where srun put this process.
struct SlurmPlace {
  std::string job_id;               // unique in the cluster
  std::string step_id;              // unique in the job
  int node = 0;                     // in [0, num_nodes)
  int num_nodes = 1;                // of the step
  std::vector<std::string> hosts;   // of the step's nodes, in their order; hosts[node] is this one
  std::optional<int> gpus_on_node;  // that this step may use here, if Slurm knows of any
  std::optional<int> cpus_on_node;
};

// The place of a task of an srun step; nothing outside of one, a batch script included. Throws
// UsageError if the step has several tasks on this node or a variable makes no sense.
std::optional<SlurmPlace> slurm_step(const base::Env& env = base::Env());

// How many nodes wait to be reached by `lockstep run`, which then starts itself on them by
// srun_command(): it is in a job but not in a step, that is in an sbatch script of several nodes or
// in the shell of an salloc (which may be on the login node: also one node counts).
std::optional<int> slurm_nodes_without_step(const base::Env& env = base::Env());

// What every srun of `lockstep run` needs, whatever the job.
std::vector<std::string> srun_flags();

struct SrunOptions {
  int num_nodes = 1;
  std::string program;                 // REQUIRED: lockstep's own path
  std::vector<std::string> arguments;  // of `lockstep`: "run" and all that follows
};

// Starts one `lockstep ARGUMENTS` on each node of the job.
std::vector<std::string> srun_command(const SrunOptions& options);

}  // namespace lockstep::launch

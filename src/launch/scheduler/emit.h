#pragma once

// Files that start `lockstep run` under a scheduler, ready to be submitted.

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::launch {

struct EmitOptions {
  std::string job_name = "lockstep";
  int num_nodes = 1;                    // in [1, kMaxEmittedNodes]
  int max_nodes = 0;                    // more than num_nodes: that many if they are free
  std::string procs_per_node = "auto";  // as --nproc-per-node takes it: "auto" counts on the node
  int cpus_per_node = 0;                // 0: whole nodes (Slurm), no limit (Kubernetes)
  int gpus_per_node = 0;                // 0: none
  std::chrono::seconds time_limit{0};   // 0: the cluster's own
  std::string image;  // Slurm: a .sqsh file, "" for none; Kubernetes: REQUIRED, registry/name:tag
  std::vector<std::string> mounts;   // SRC:DST[:ro]; Kubernetes: SRC is /a/folder of the nodes or
                                     // the name of a PersistentVolumeClaim
  std::string program = "lockstep";  // its path there
  std::string folder;                // Slurm: where it runs; "": where sbatch is called
  std::chrono::seconds stop_grace{120};  // from SIGTERM ("checkpoint and stop") to SIGKILL
  int max_restarts = 0;                  // of all ranks; Kubernetes replaces pods it has evicted
  std::vector<std::string> flags;        // further ones of `lockstep run`
  std::vector<std::string> command;      // REQUIRED: program and arguments of the ranks
};

inline constexpr int kMaxEmittedNodes = 10000;

// The options that both formats check; `kind` names the format in the UsageError.
void check_emit_options(const EmitOptions& options, const std::string& kind);

// A script for sbatch. It makes the job's secret when it runs, so that it may be kept and shared.
// Throws UsageError for an option that the script cannot express.
std::string emit_slurm(const EmitOptions& options);

// A Secret, a headless Service and an Indexed Job, for kubectl apply. It holds a new random secret:
// whoever can read it can join the job. Throws UsageError as above.
std::string emit_kubernetes(const EmitOptions& options);

}  // namespace lockstep::launch

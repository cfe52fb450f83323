#pragma once

// The plan of a job before it starts: which rank runs where, and with which environment.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <sys/resource.h>
#include <vector>

#include "base/process/isolation.h"
#include "base/socket.h"
#include "image/container.h"
#include "launch/job/job_message.h"
#include "launch/launch.h"

namespace lockstep::launch {

// What identifies one start of the ranks, the same for all ranks of a host.
struct JobIdentity {
  std::string id;
  std::string secret;
  std::string role = "default";
  int max_restarts = 0;
  std::vector<int> stop_signals;  // the signals that end the job
  Assignment place;
};

struct WorkerPlan {
  int rank = 0;
  int local_rank = 0;
  std::vector<std::string> env;  // the whole environment, NAME=value
  std::string log_folder;        // empty: no log files
  std::string error_file;        // TORCHELASTIC_ERROR_FILE
  std::vector<int> cpus;         // those that it may run on; empty: all that its guardian has
  std::optional<std::string> visible_gpus;  // CUDA_VISIBLE_DEVICES; nothing: as it was inherited
  bool has_stdin = false;                   // it gets the launcher's input or a terminal
};

struct NodePlan {
  std::string name;  // the command's name, for messages
  int node = 0;
  int num_nodes = 1;
  int world_size = 1;
  base::IsolationMode isolation = base::IsolationMode::Guardian;
  std::chrono::nanoseconds stop_grace{};
  OutputOptions output;
  PlacementOptions placement;
  std::optional<image::ContainerOptions> container;  // the workers' root is this image
  std::vector<std::string> command;
  rlimit file_limit{};  // what workers get, set by the leader: it and the agents raise their own
  std::vector<WorkerPlan> workers;
};

// The nodes of this host. Ranks are dealt node by node.
std::vector<NodePlan> plan_nodes(const LaunchOptions& options, const JobIdentity& job,
                                 const std::vector<std::string>& inherited_env);

// The environment of one rank: `inherited`, with everything that describes a place in a job
// replaced. docs/formats/environment.md is the list.
struct RankPlace {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node = 0;
  int num_nodes = 1;
  int num_cores = 1;  // cores that the job may use on this host; OMP_NUM_THREADS divides them
  int ranks_on_host = 1;
  int gpu = 0;             // LOCKSTEP_GPU_INDEX
  bool share_gpu = false;  // LOCKSTEP_SHARE_GPU=1; false: as it was inherited
  std::string error_file;  // empty: TORCHELASTIC_ERROR_FILE is unset
};
std::vector<std::string> worker_environment(const RankPlace& place, const JobIdentity& job,
                                            const std::vector<std::string>& inherited);

// A TCP socket bound to a free port, never listening: while it is open the kernel gives the port to
// nobody else, and rank 0 can still bind and listen on it with SO_REUSEADDR, which every c10d store
// sets.
struct ReservedPort {
  base::UniqueFd socket;
  uint16_t port = 0;
};
ReservedPort reserve_port(uint16_t port = 0);  // 0: any

}  // namespace lockstep::launch

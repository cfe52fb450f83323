#pragma once

// The flags of `lockstep run`, which are torchrun's and some of its own, and what they mean.

#include <string>
#include <vector>

#include "launch/launch.h"

namespace lockstep::launch {

// As they were given; an empty text: not given.
struct RunFlags {
  // How many
  std::string nnodes;
  std::string nproc_per_node;
  std::string local_nodes;
  // Rendezvous
  std::string rdzv_backend;
  std::string rdzv_endpoint;
  std::string rdzv_id;
  std::string rdzv_conf;
  std::string node_rank;
  std::string master_addr;
  std::string master_port;
  std::string local_addr;
  std::string secret_file;
  bool standalone = false;
  // Supervision
  std::string max_restarts;
  std::string stop_grace;
  std::string signals_to_handle;
  std::string stdin_rank;
  std::string isolation;
  std::string monitor_interval;
  std::string start_method;
  // Output
  std::string log_dir;
  std::string log_dir_mode;
  std::string redirects;
  std::string tee;
  std::string local_ranks_filter;
  std::string duplicate_stdout_filters;
  std::string duplicate_stderr_filters;
  std::string role;
  bool no_prefix = false;
  // Placement
  std::string bind;
  std::string numa_binding;
  bool virtual_local_rank = false;
  bool share_gpu = false;
  // The program
  bool module = false;
  bool run_path = false;
  bool no_python = false;
  std::vector<std::string> program;  // and its arguments
  // On other hosts, in an image
  std::string hosts;
  std::string hostfile;
  std::vector<std::string> env;
  bool join = false;  // of `lockstep run --hosts`, for the other end
  std::string image;
  std::vector<std::string> mounts;
  std::string container_runtime;
  std::vector<std::string> stages;
  // Instead of running
  bool dry_run = false;
  std::string emit;
  std::string gpus_per_node;  // for emit
  // Known, and refused
  std::string event_log_handler;
  std::string logs_specs;
};

// What the meaning of flags depends on besides them.
struct RunHost {
  int num_cores = 1;             // that this process may use
  int num_gpus = 0;              // that a program would see
  bool is_for_cpu = false;       // LOCKSTEP_DEVICE=cpu: GPUs do not count
  std::string python;            // PYTHON_EXEC; empty: python3
  std::string prefix_template;   // TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE
  std::string shutdown_timeout;  // TORCH_ELASTIC_SHUTDOWN_TIMEOUT

  static RunHost this_host();
};

// Throws UsageError, one sentence, for a value that makes no sense, for flags that contradict each
// other and for what lockstep does not do.
LaunchOptions launch_options(const RunFlags& flags, const RunHost& host);

struct NodeRange {
  int min = 1;
  int max = 1;
};

// Its parts.
NodeRange parse_nnodes(const RunFlags& flags);
RendezvousOptions rendezvous_options(const RunFlags& flags, NodeRange nodes);
OutputOptions output_options(const RunFlags& flags, const RunHost& host);
std::vector<int> parse_signals(const std::string& text);  // "SIGTERM,USR1"

// A flag's value as a whole number, or seconds in [0, one day]. Throw UsageError.
int flag_number(const std::string& flag, const std::string& text, int min, int max);
std::chrono::nanoseconds flag_seconds(const std::string& flag, const std::string& text);

}  // namespace lockstep::launch

#include <algorithm>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/process/cores.h"
#include "commands.h"
#include "launch/dry_run.h"
#include "launch/flags/emit_flags.h"
#include "launch/job/starter.h"
#include "launch/launch.h"
#include "launch/scheduler/slurm_job.h"
#include "remote/host_address.h"
#include "run_flags.h"

namespace lockstep::app {

namespace {

launch::LaunchOptions options_of(const ReadFlags& read) {
  try {
    return launch::launch_options(read.flags, launch::RunHost::this_host());
  } catch (const UsageError& error) {
    if (read.variables.empty()) {
      throw;
    }
    throw UsageError("{}; set in the environment: {}", error.what(),
                     fmt::join(read.variables, ", "));
  }
}

// The arguments as they were given, without the flags of these names.
Arguments without(const ReadFlags& read, const std::vector<std::string>& names) {
  Arguments arguments;
  for (const std::string& flag : read.given) {
    const std::string name = flag.substr(0, flag.find('='));
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      arguments.push_back(flag);
    }
  }
  arguments.push_back("--");
  arguments.insert(arguments.end(), read.flags.program.begin(), read.flags.program.end());
  return arguments;
}

// The process that `lockstep run --hosts` starts on each host.
int run_joined() {
  const launch::RemoteJob job = launch::receive_remote_job();
  remote::announce_ready();
  const auto read = read_run_flags(job.arguments, base::Env());
  launch::LaunchOptions options = options_of(*read);
  options.min_nodes = options.max_nodes = job.num_nodes;
  options.rendezvous.endpoint = job.endpoint;
  options.rendezvous.job_id = job.job_id;
  options.rendezvous.secret = job.secret;
  options.rendezvous.is_head = false;
  options.rendezvous.node_rank = job.node_rank;
  if (job.procs_per_node > 0) {
    options.procs_per_node = job.procs_per_node;
  }
  options.life_fd = STDIN_FILENO;
  options.head_is_heard = true;
  return launch::run_job(options);
}

int emit(const ReadFlags& read) {
  if (read.flags.emit == "slurm") {
    fmt::print("{}", launch::emit_slurm(launch::emit_options(read.flags, read.given)));
  } else if (read.flags.emit == "kubernetes") {
    fmt::print("{}", launch::emit_kubernetes(launch::emit_options(read.flags, read.given)));
  } else {
    throw UsageError("--emit {} is unknown; it is slurm or kubernetes", read.flags.emit);
  }
  return 0;
}

// The user has said how the nodes find each other; then Slurm is not asked.
bool names_rendezvous(const launch::RunFlags& flags) {
  return flags.standalone || !flags.nnodes.empty() || !flags.node_rank.empty() ||
         !flags.master_addr.empty() || !flags.rdzv_endpoint.empty() || !flags.hosts.empty() ||
         !flags.hostfile.empty() || !flags.local_nodes.empty();
}

// Returns false if nothing is left to do: a dry run has printed what srun would start.
bool ask_slurm(const ReadFlags& read, launch::LaunchOptions& options) {
  if (names_rendezvous(read.flags)) {
    return true;
  }
  if (const auto place = launch::slurm_step()) {
    launch::join_slurm_step(*place, options);
    if (read.flags.nproc_per_node.empty()) {
      options.procs_per_node = launch::slurm_procs_per_node(*place, base::num_usable_cores());
    }
  } else if (const auto num_nodes = launch::slurm_nodes_without_step()) {
    Arguments arguments = without(read, {"--dry-run"});
    arguments.insert(arguments.begin(), "run");
    if (read.flags.dry_run) {
      fmt::print("{}\n",
                 remote::shell_command(launch::srun_command({.num_nodes = *num_nodes,
                                                             .program = remote::own_program(),
                                                             .arguments = arguments})));
      return false;
    }
    launch::become_srun(*num_nodes, arguments);
  }
  return true;
}

}  // namespace

int run(const Arguments& arguments) {
  const auto read = read_run_flags(arguments, base::Env());
  if (!read) {
    return 0;
  }
  if (read->flags.join) {
    return run_joined();
  }
  if (!read->flags.emit.empty()) {
    return emit(*read);
  }
  if (!read->flags.gpus_per_node.empty()) {
    throw UsageError("--gpus-per-node {} is for a scheduler; give --emit slurm or kubernetes too",
                     read->flags.gpus_per_node);
  }
  launch::LaunchOptions options = options_of(*read);
  if (!ask_slurm(*read, options)) {
    return 0;
  }
  options.arguments = without(*read, {"--hosts", "--hostfile", "--env", "--dry-run"});
  if (read->flags.dry_run) {
    fmt::print("{}", launch::dry_run_text(options));
    return 0;
  }
  return launch::run_job(options);
}

}  // namespace lockstep::app

#include "launch/dry_run.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/env.h"
#include "base/network.h"
#include "base/process/fork.h"
#include "base/process/process.h"
#include "launch/flags/command.h"
#include "launch/job/rendezvous.h"
#include "launch/plan.h"
#include "remote/host_address.h"
#include "remote/ssh.h"

namespace lockstep::launch {

namespace {

std::string ranks_text(int first, int count) {
  return count == 1 ? fmt::format("rank {}", first)
                    : fmt::format("ranks {}-{}", first, first + count - 1);
}

std::string value_of(const std::vector<std::string>& env, const std::string& name) {
  for (const std::string& entry : env) {
    if (entry.starts_with(name + "=")) {
      return entry.substr(name.size() + 1);
    }
  }
  return "unset";
}

std::string worker_text(const NodePlan& node, const WorkerPlan& worker) {
  std::string text = fmt::format(
      "  rank {}: {}\n    OMP_NUM_THREADS={}", worker.rank,
      remote::shell_command(fill_placeholders(
          node.command,
          {.rank = worker.rank, .local_rank = worker.local_rank, .world_size = node.world_size})),
      value_of(worker.env, "OMP_NUM_THREADS"));
  if (!worker.cpus.empty()) {
    text += fmt::format(", on cores {}", fmt::join(worker.cpus, ","));
  }
  if (worker.visible_gpus) {
    text += ", CUDA_VISIBLE_DEVICES=" + *worker.visible_gpus;
  }
  if (!worker.log_folder.empty()) {
    text += ", log " + worker.log_folder;
  }
  return text + "\n";
}

std::string container_text(const image::ContainerOptions& container) {
  std::string text =
      fmt::format("image {} by {}\n", container.image,
                  container.runtime == image::ContainerRuntime::Builtin ? "lockstep itself"
                                                                        : "another runtime");
  for (const image::Mount& mount : container.mounts) {
    text += fmt::format("  {} is {}{}\n", mount.target, mount.source,
                        mount.read_only ? ", read-only" : "");
  }
  return text;
}

std::string hosts_text(const LaunchOptions& options) {
  const remote::SshOptions ssh = remote::SshOptions::from_env(base::Env());
  std::string text = fmt::format("head: here, at {}, any free port\n",
                                 remote::rendezvous_address(options.hosts, ssh));
  int first_rank = 0;
  for (size_t i = 0; i < options.hosts.size(); ++i) {
    const remote::HostEntry& host = options.hosts[i];
    const bool is_counted = options.hosts_count && host.slots == 0;
    const int procs = host.slots > 0 ? host.slots : options.procs_per_node;
    const std::vector<std::string> remote =
        remote::remote_lockstep(base::own_program(), {"run", "--join"});
    text += fmt::format(
        "node {} on {}: {}\n  {}\n", i, host.text(),
        is_counted            ? "as many ranks as it counts there"
        : options.hosts_count ? fmt::format("{} rank{}", procs, procs == 1 ? "" : "s")
                              : ranks_text(first_rank, procs),
        remote::shell_command(remote::is_this_host(host) ? remote
                                                         : remote::ssh_command(host, ssh, remote)));
    first_rank += procs;
  }
  return text + fmt::format("each is told on its standard input to run: lockstep run {}\n",
                            remote::shell_command(options.arguments));
}

std::string rendezvous_text(const LaunchOptions& options, const Rendezvous& rendezvous) {
  if (options.max_nodes == 1) {
    return "";
  }
  const std::string count = options.min_nodes == options.max_nodes
                                ? fmt::format("{}", options.max_nodes)
                                : fmt::format("{} to {}", options.min_nodes, options.max_nodes);
  return fmt::format("{} nodes of job {} have their rendezvous at {}; this host {}\n", count,
                     rendezvous.job_id, rendezvous.endpoints.front().text(),
                     rendezvous.is_head ? "listens there" : "joins there");
}

// Leaves the secret out: to read it would make the user's key if there is none yet.
Rendezvous rendezvous_without_key(RendezvousOptions options) {
  const base::Env env;
  if (options.secret.empty() && options.secret_file.empty() && !env.has("LOCKSTEP_JOB_SECRET")) {
    options.secret = "none";
  }
  return plan_rendezvous(options, env);
}

}  // namespace

std::string dry_run_text(const LaunchOptions& options) {
  check_options(options);
  std::string text;
  for (const StageItem& item : options.stages) {
    text += fmt::format("before the ranks start, on each node: {} to {}\n", item.source,
                        item.destination);
  }
  if (options.container) {
    text += container_text(*options.container);
  }
  if (!options.hosts.empty()) {
    return text + hosts_text(options);
  }
  const Rendezvous rendezvous = rendezvous_without_key(options.rendezvous);
  text += rendezvous_text(options, rendezvous);
  const int procs = options.local_nodes * options.procs_per_node;
  const int before = std::max(0, options.rendezvous.node_rank);
  const int nodes = options.max_nodes == 1 ? options.local_nodes : options.max_nodes;
  const JobIdentity job{.id = rendezvous.job_id,
                        .role = options.role,
                        .max_restarts = options.max_restarts,
                        .place = {.first_node = before,
                                  .num_nodes = nodes,
                                  .first_rank = before * procs,
                                  .world_size = nodes * options.procs_per_node,
                                  .master_addr = rendezvous.endpoints.front().host}};
  if (options.max_nodes > 1 && options.rendezvous.node_rank < 0) {
    text += "ranks depend on the order of joining; as the first node it would have:\n";
  }
  for (const NodePlan& node : plan_nodes(options, job, base::own_environment())) {
    text += fmt::format("node {} on {}: {} of {}\n", node.node, base::host_name(),
                        ranks_text(node.workers.front().rank, options.procs_per_node),
                        job.place.world_size);
    for (const WorkerPlan& worker : node.workers) {
      text += worker_text(node, worker);
    }
  }
  return text;
}

}  // namespace lockstep::launch

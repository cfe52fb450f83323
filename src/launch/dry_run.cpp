#include "launch/dry_run.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/env.h"
#include "base/network.h"
#include "launch/flags/command.h"
#include "base/process/fork.h"
#include "remote/host_address.h"
#include "launch/job/meeting.h"
#include "launch/plan.h"
#include "remote/ssh.h"

namespace lockstep {

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
      shell_command(fill_placeholders(
          node.command,
          {.rank = worker.rank, .local_rank = worker.local_rank, .world_size = node.world_size})),
      value_of(worker.env, "OMP_NUM_THREADS"));
  if (!worker.cpus.empty()) {
    text += fmt::format(", on cores {}", fmt::join(worker.cpus, ","));
  }
  if (!worker.log_folder.empty()) {
    text += ", log " + worker.log_folder;
  }
  return text + "\n";
}

std::string container_text(const ContainerOptions& container) {
  std::string text = fmt::format(
      "image {} by {}\n", container.image,
      container.runtime == ContainerRuntime::Builtin ? "lockstep itself" : "another runtime");
  for (const Mount& mount : container.mounts) {
    text += fmt::format("  {} is {}{}\n", mount.target, mount.source,
                        mount.read_only ? ", read-only" : "");
  }
  return text;
}

std::string hosts_text(const LaunchOptions& options) {
  const SshOptions ssh = SshOptions::from_env(Env());
  std::string text =
      fmt::format("head: here, at {}, any free port\n", meeting_address(options.hosts, ssh));
  int first_rank = 0;
  for (size_t i = 0; i < options.hosts.size(); ++i) {
    const HostEntry& host = options.hosts[i];
    const int procs = host.slots > 0 ? host.slots : options.procs_per_node;
    const std::vector<std::string> remote = remote_lockstep(own_program(), {"run", "--join"});
    text +=
        fmt::format("node {} on {}: {}\n  {}\n", i, host.text(), ranks_text(first_rank, procs),
                    shell_command(is_this_host(host) ? remote : ssh_command(host, ssh, remote)));
    first_rank += procs;
  }
  return text + fmt::format("each is told on its standard input to run: lockstep run {}\n",
                            shell_command(options.arguments));
}

std::string meeting_text(const LaunchOptions& options, const Meeting& meeting) {
  if (options.max_nodes == 1) {
    return "";
  }
  const std::string count = options.min_nodes == options.max_nodes
                                ? fmt::format("{}", options.max_nodes)
                                : fmt::format("{} to {}", options.min_nodes, options.max_nodes);
  return fmt::format("{} nodes of job {} meet at {}; this host {}\n", count, meeting.job_id,
                     meeting.endpoints.front().text(),
                     meeting.is_head ? "listens there" : "joins there");
}

// Without a secret: the user's key would be made where there is none yet.
Meeting meeting_without_key(MeetingOptions options) {
  const Env env;
  if (options.secret.empty() && options.secret_file.empty() && !env.has("LOCKSTEP_JOB_SECRET")) {
    options.secret = "none";
  }
  return plan_meeting(options, env);
}

}  // namespace

std::string dry_run_text(const LaunchOptions& options) {
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
  const Meeting meeting = meeting_without_key(options.meeting);
  text += meeting_text(options, meeting);
  const int procs = options.local_nodes * options.procs_per_node;
  const int before = std::max(0, options.meeting.node_rank);
  const int nodes = options.max_nodes == 1 ? options.local_nodes : options.max_nodes;
  const JobIdentity job{.id = meeting.job_id,
                        .role = options.role,
                        .max_restarts = options.max_restarts,
                        .place = {.first_node = before,
                                  .num_nodes = nodes,
                                  .first_rank = before * procs,
                                  .world_size = nodes * options.procs_per_node,
                                  .master_addr = meeting.endpoints.front().host}};
  if (options.max_nodes > 1 && options.meeting.node_rank < 0) {
    text += "ranks depend on the order of joining; as the first node it would have:\n";
  }
  for (const NodePlan& node : plan_nodes(options, job, own_environment())) {
    text += fmt::format("node {} on {}: {} of {}\n", node.node, host_name(),
                        ranks_text(node.workers.front().rank, options.procs_per_node),
                        job.place.world_size);
    for (const WorkerPlan& worker : node.workers) {
      text += worker_text(node, worker);
    }
  }
  return text;
}

}  // namespace lockstep

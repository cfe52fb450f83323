#include "launch/plan.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <netinet/in.h>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/process/cores.h"
#include "base/process/process.h"
#include "launch/node/error_file.h"
#include "launch/node/gpu_deal.h"
#include "launch/node/gpus.h"

namespace lockstep::launch {

namespace {

// Set only if the user has not: they tune, they do not describe a place.
void set_defaults(const RankPlace& place, std::map<std::string, std::string>& env) {
  env.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  env.try_emplace("THP_MEM_ALLOC_ENABLE", "1");  // libtorch's: huge pages for large tensors
  const int threads = std::max(1, place.num_cores / std::max(1, place.ranks_on_host));
  env.try_emplace("OMP_NUM_THREADS", std::to_string(threads));
}

void set_torchrun_names(const RankPlace& place, const JobIdentity& job,
                        std::map<std::string, std::string>& env) {
  env["RANK"] = env["ROLE_RANK"] = std::to_string(place.rank);
  env["WORLD_SIZE"] = env["ROLE_WORLD_SIZE"] = std::to_string(place.world_size);
  env["LOCAL_RANK"] = std::to_string(place.local_rank);
  env["LOCAL_WORLD_SIZE"] = std::to_string(place.local_world_size);
  env["GROUP_RANK"] = std::to_string(place.node);
  env["GROUP_WORLD_SIZE"] = std::to_string(place.num_nodes);
  env["ROLE_NAME"] = job.role;
  env["MASTER_ADDR"] = job.place.master_addr;
  env["MASTER_PORT"] = std::to_string(job.place.master_port);
  env["TORCHELASTIC_RESTART_COUNT"] = std::to_string(job.place.restart_count);
  env["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(job.max_restarts);
  env["TORCHELASTIC_RUN_ID"] = job.id;
  env["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  std::string signals;
  for (const int signal : job.stop_signals) {
    signals += (signals.empty() ? "" : ",") + base::signal_name(signal);
  }
  env["TORCHELASTIC_SIGNALS_TO_HANDLE"] = signals;
  env.erase("TORCHELASTIC_ERROR_FILE");
  if (!place.error_file.empty()) {
    env["TORCHELASTIC_ERROR_FILE"] = place.error_file;
  }
}

void set_own_names(const RankPlace& place, const JobIdentity& job,
                   std::map<std::string, std::string>& env) {
  env["LOCKSTEP_RANK"] = std::to_string(place.rank);
  env["LOCKSTEP_WORLD_SIZE"] = std::to_string(place.world_size);
  env["LOCKSTEP_LOCAL_RANK"] = std::to_string(place.local_rank);
  env["LOCKSTEP_LOCAL_WORLD_SIZE"] = std::to_string(place.local_world_size);
  env["LOCKSTEP_NODE_RANK"] = std::to_string(place.node);
  env["LOCKSTEP_NUM_NODES"] = std::to_string(place.num_nodes);
  env["LOCKSTEP_NODE_ID"] = fmt::format("{}-n{}", job.id, place.node);
  env["LOCKSTEP_STORE"] = job.place.store;
  env["LOCKSTEP_JOB_ID"] = job.id;
  env["LOCKSTEP_JOB_SECRET"] = job.secret;
  env["LOCKSTEP_GENERATION"] = std::to_string(job.place.generation);
  env["LOCKSTEP_GPU_INDEX"] = std::to_string(place.gpu);
  if (place.share_gpu) {
    env["LOCKSTEP_SHARE_GPU"] = "1";
  }
}

}  // namespace

std::vector<std::string> worker_environment(const RankPlace& place, const JobIdentity& job,
                                            const std::vector<std::string>& inherited) {
  std::map<std::string, std::string> env;
  for (const std::string& entry : inherited) {
    const size_t equals = entry.find('=', 1);
    // A `lockstep run` inside this job must not take our flags for its own.
    if (equals != std::string::npos && !entry.starts_with("PET_")) {
      env.try_emplace(entry.substr(0, equals), entry.substr(equals + 1));
    }
  }
  set_defaults(place, env);
  set_torchrun_names(place, job, env);
  set_own_names(place, job, env);
  std::vector<std::string> entries;
  entries.reserve(env.size());
  for (const auto& [name, value] : env) {
    entries.push_back(name + "=" + value);
  }
  return entries;
}

namespace {

void replace(std::vector<std::string>& env, const std::string& name, const std::string& value) {
  std::erase_if(env, [&](const std::string& entry) { return entry.starts_with(name + "="); });
  env.push_back(name + "=" + value);
}

// What the host's resources mean for one rank.
struct RankShare {
  const RankPlacement& bound;
  const RankGpu& gpu;
};

WorkerPlan plan_worker(const LaunchOptions& options, const JobIdentity& job, RankPlace place,
                       const RankShare& share, const std::vector<std::string>& inherited_env) {
  const auto& [bound, gpu] = share;
  WorkerPlan worker{.rank = place.rank,
                    .local_rank = place.local_rank,
                    .cpus = bound.cpus,
                    .has_stdin = place.rank == options.stdin_rank};
  if (!options.output.log_dir.empty()) {
    const std::string run = job.place.run.empty() ? job.id : job.id + "_" + job.place.run;
    worker.log_folder = fmt::format("{}/{}/attempt_{}/rank_{}", options.output.log_dir, run,
                                    job.place.generation, place.rank);
  }
  if (!options.container) {  // in an image it would be nowhere to be seen
    worker.error_file =
        worker.log_folder.empty() ? new_error_file() : worker.log_folder + "/error.json";
  }
  place.error_file = worker.error_file;
  if (bound.num_cores > 0) {
    place.num_cores = bound.num_cores;
    place.ranks_on_host = 1;
  }
  place.gpu = gpu.number;
  place.share_gpu = options.placement.share_gpu;
  worker.env = worker_environment(place, job, inherited_env);
  if (gpu.visible) {
    worker.visible_gpus = gpu.visible;
    replace(worker.env, "CUDA_VISIBLE_DEVICES", *gpu.visible);
  }
  if (options.placement.virtual_local_rank) {
    replace(worker.env, "LOCAL_RANK", "0");
  }
  return worker;
}

std::optional<std::string> inherited_value(const std::vector<std::string>& env,
                                           const std::string& name) {
  const auto entry = std::find_if(env.begin(), env.end(), [&](const std::string& text) {
    return text.starts_with(name + "=");
  });
  return entry == env.end() ? std::nullopt : std::optional(entry->substr(name.size() + 1));
}

std::vector<RankGpu> deal_this_hosts_gpus(const LaunchOptions& options,
                                          const std::vector<std::string>& env) {
  const auto visible = inherited_value(env, "CUDA_VISIBLE_DEVICES");
  return deal_gpus({.gpus = visible_gpus("", visible),
                    .visible = visible,
                    .num_nodes = options.local_nodes,
                    .procs_per_node = options.procs_per_node,
                    .share = options.placement.share_gpu,
                    .one_each = options.placement.virtual_local_rank});
}

// The container runtime of an ordinary user often has the setuid bit, which has no effect in the
// user namespace that the user's PID namespace needs.
base::IsolationMode wanted_isolation(const LaunchOptions& options) {
  const bool is_foreign =
      options.container && options.container->runtime != image::ContainerRuntime::Builtin;
  return options.isolation == base::IsolationMode::Auto && is_foreign && ::geteuid() != 0
             ? base::IsolationMode::Guardian
             : options.isolation;
}

}  // namespace

std::vector<NodePlan> plan_nodes(const LaunchOptions& options, const JobIdentity& job,
                                 const std::vector<std::string>& inherited_env) {
  const int num_cores = base::num_usable_cores();
  const base::IsolationMode isolation = base::choose_isolation(wanted_isolation(options));
  const int num_ranks = options.local_nodes * options.procs_per_node;
  const Placement placement = place_on_this_host(options.placement, num_ranks);
  const std::vector<RankGpu> gpus = deal_this_hosts_gpus(options, inherited_env);
  std::vector<NodePlan> nodes;
  for (int i = 0; i < options.local_nodes; ++i) {
    NodePlan plan{.name = options.name,
                  .node = job.place.first_node + i,
                  .num_nodes = job.place.num_nodes,
                  .world_size = job.place.world_size,
                  .isolation = isolation,
                  .stop_grace = options.stop_grace,
                  .output = options.output,
                  .placement = options.placement,
                  .container = options.container,
                  .command = options.command};
    for (int local = 0; local < options.procs_per_node; ++local) {
      const int on_host = i * options.procs_per_node + local;
      const RankPlace place{.rank = job.place.first_rank + on_host,
                            .world_size = job.place.world_size,
                            .local_rank = local,
                            .local_world_size = options.procs_per_node,
                            .node = plan.node,
                            .num_nodes = job.place.num_nodes,
                            .num_cores = num_cores,
                            .ranks_on_host = num_ranks};
      const size_t index = static_cast<size_t>(on_host);
      plan.workers.push_back(plan_worker(options, job, place,
                                         {.bound = placement.ranks[index], .gpu = gpus[index]},
                                         inherited_env));
    }
    if (options.container && options.container->runtime != image::ContainerRuntime::Builtin) {
      plan.command =
          image::container_command(*options.container, options.command, plan.workers.front().env);
    }
    nodes.push_back(std::move(plan));
  }
  return nodes;
}

ReservedPort reserve_port(uint16_t port) {
  base::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  socklen_t size = sizeof address;
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw IoError("cannot reserve {} for MASTER_PORT: {}",
                  port == 0 ? std::string("a port") : fmt::format("port {}", port),
                  base::errno_text(errno));
  }
  return {std::move(fd), ntohs(address.sin_port)};
}

}  // namespace lockstep::launch

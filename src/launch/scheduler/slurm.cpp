#include "launch/scheduler/slurm.h"

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/host_list.h"

namespace lockstep::launch {

namespace {

constexpr int kMaxPerNode = 65536;  // CPUs, GPUs
// Steps that are not srun's: the shells of sbatch and salloc.
constexpr const char* kBatchStep = "4294967291";
constexpr const char* kInteractiveStep = "4294967290";

bool in_step(const base::Env& env) {
  const auto step = env.text("SLURM_STEP_ID");
  return step && *step != kBatchStep && *step != kInteractiveStep && env.has("SLURM_PROCID");
}

void check_one_task(const base::Env& env, int node) {
  const std::string name = "SLURM_STEP_TASKS_PER_NODE";
  const auto list = env.text(name);
  const int tasks = list ? base::tasks_on_node(*list, node, name) : 1;
  if (tasks > 1) {
    throw UsageError(
        "srun started {} tasks on this node; lockstep run wants one per node and starts the ranks "
        "itself: srun --ntasks-per-node=1, and --nproc-per-node {} for lockstep run",
        tasks, tasks);
  }
}

std::vector<std::string> step_hosts(const base::Env& env, int num_nodes) {
  for (const std::string name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (const auto list = env.text(name)) {
      auto hosts = base::expand_host_list(*list, name);
      if (hosts.size() != static_cast<size_t>(num_nodes)) {
        throw UsageError("{}={} names {} hosts, but this srun step has {} nodes", name, *list,
                         hosts.size(), num_nodes);
      }
      return hosts;
    }
  }
  throw UsageError("this is an srun step without SLURM_STEP_NODELIST; has something unset it?");
}

std::optional<int> count(const base::Env& env, const std::string& name) {
  const auto number = env.integer(name, 0, kMaxPerNode);
  return number ? std::optional(static_cast<int>(*number)) : std::nullopt;
}

}  // namespace

std::optional<SlurmPlace> slurm_step(const base::Env& env) {
  if (!in_step(env)) {
    return std::nullopt;
  }
  SlurmPlace place;
  place.job_id = env.text("SLURM_JOB_ID").value_or("");
  place.step_id = env.text("SLURM_STEP_ID").value_or("");
  auto num_nodes = env.integer("SLURM_STEP_NUM_NODES", 1, base::kMaxListedHosts);
  if (!num_nodes) {
    num_nodes = env.integer("SLURM_NNODES", 1, base::kMaxListedHosts);
  }
  const auto node = env.integer("SLURM_NODEID", 0, num_nodes.value_or(1) - 1);
  if (place.job_id.empty() || !num_nodes || !node) {
    throw UsageError(
        "this is srun step {}, but SLURM_JOB_ID, SLURM_STEP_NUM_NODES or SLURM_NODEID is not set; "
        "has something unset it?",
        place.step_id);
  }
  place.num_nodes = static_cast<int>(*num_nodes);
  place.node = static_cast<int>(*node);
  check_one_task(env, place.node);
  place.hosts = step_hosts(env, place.num_nodes);
  place.gpus_on_node = count(env, "SLURM_GPUS_ON_NODE");
  place.cpus_on_node = count(env, "SLURM_CPUS_ON_NODE");
  return place;
}

std::optional<int> slurm_nodes_without_step(const base::Env& env) {
  if (!env.has("SLURM_JOB_ID") || in_step(env)) {
    return std::nullopt;
  }
  auto num_nodes = env.integer("SLURM_JOB_NUM_NODES", 1, base::kMaxListedHosts);
  if (!num_nodes) {
    num_nodes = env.integer("SLURM_NNODES", 1, base::kMaxListedHosts);
  }
  // A batch script runs on its first node, and slurmd says so.
  const bool is_on_node = env.has("SLURMD_NODENAME");
  if (!num_nodes || (*num_nodes == 1 && is_on_node)) {
    return std::nullopt;
  }
  return static_cast<int>(*num_nodes);
}

std::vector<std::string> srun_flags() {
  return {"--ntasks-per-node=1",
          "--cpu-bind=none",       // else one task gets one core, and its ranks with it
          "--mpi=none",            // no process manager waits for the ranks to call it
          "--kill-on-bad-exit=0",  // lockstep decides what the end of one node means for the others
          "--wait=0",              // and when the others are late
          "--export=ALL"};         // the job's secret; sbatch --export=NONE would be passed on
}

std::vector<std::string> srun_command(const SrunOptions& options) {
  std::vector<std::string> argv{"srun", fmt::format("--nodes={}", options.num_nodes),
                                fmt::format("--ntasks={}", options.num_nodes)};
  const auto flags = srun_flags();
  argv.insert(argv.end(), flags.begin(), flags.end());
  argv.push_back(options.program);
  argv.insert(argv.end(), options.arguments.begin(), options.arguments.end());
  return argv;
}

}  // namespace lockstep::launch

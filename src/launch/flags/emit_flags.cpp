#include "launch/flags/emit_flags.h"

#include <algorithm>
#include <filesystem>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/process/process.h"

namespace lockstep::launch {

namespace {

constexpr int kMaxGpusPerNode = 64;

// The scheduler says where the nodes and their rendezvous are: flags are the same for all tasks.
void check_places(const RunFlags& flags) {
  for (const auto& [flag, value] :
       {std::pair("--hosts", flags.hosts), std::pair("--hostfile", flags.hostfile),
        std::pair("--node-rank", flags.node_rank), std::pair("--master-addr", flags.master_addr),
        std::pair("--master-port", flags.master_port),
        std::pair("--rdzv-endpoint", flags.rdzv_endpoint),
        std::pair("--rdzv-backend", flags.rdzv_backend),
        std::pair("--local-nodes", flags.local_nodes),
        std::pair("--standalone", std::string(flags.standalone ? "1" : "")),
        std::pair("--env", flags.env.empty() ? std::string() : flags.env.front())}) {
    if (!value.empty()) {
      throw UsageError(
          "--emit {}: {} would be the same on every node, and the scheduler says where the nodes "
          "and their rendezvous are; leave it out{}",
          flags.emit, flag,
          flag == std::string("--hosts") || flag == std::string("--hostfile")
              ? " and give --nnodes N"
              : "");
    }
  }
}

// Values that the tasks would refuse are refused here, before the job waits in a queue.
void check_values(RunFlags flags) {
  const std::string& procs = flags.nproc_per_node;
  if (procs == "auto" || procs == "cpu" || procs == "gpu") {
    flags.nproc_per_node.clear();  // the tasks count
  }
  flags.nnodes.clear();
  flags.image.clear();  // it need not exist on this host
  flags.mounts.clear();
  flags.container_runtime.clear();
  launch_options(flags, {});
}

bool is_taken_apart(const std::string& flag) {
  static const std::vector<std::string> kNames{
      "--nnodes", "--nproc-per-node", "--rdzv-id", "--image",        "--mount",
      "--emit",   "--stop-grace",     "--dry-run", "--gpus-per-node"};
  return std::find(kNames.begin(), kNames.end(), flag.substr(0, flag.find('='))) != kNames.end();
}

}  // namespace

EmitOptions emit_options(const RunFlags& flags, const std::vector<std::string>& given) {
  check_places(flags);
  check_values(flags);
  const NodeRange nodes = parse_nnodes(flags);
  EmitOptions options{.num_nodes = nodes.min,
                      .max_nodes = nodes.max,
                      .image = flags.image,
                      .mounts = flags.mounts,
                      .command = flags.program};
  if (!flags.nproc_per_node.empty()) {
    options.procs_per_node = flags.nproc_per_node;
  }
  if (!flags.gpus_per_node.empty()) {
    options.gpus_per_node = flag_number("--gpus-per-node", flags.gpus_per_node, 1, kMaxGpusPerNode);
  } else if (flags.nproc_per_node == "gpu") {
    throw UsageError(
        "--emit {}: --nproc-per-node gpu counts the GPUs that the scheduler gives, and it gives "
        "none that nobody asks for; give --gpus-per-node N too",
        flags.emit);
  }
  const auto procs = base::parse_integer(options.procs_per_node, 1, INT32_MAX);
  if (options.gpus_per_node > 0 && procs && *procs > options.gpus_per_node && !flags.share_gpu) {
    throw UsageError(
        "--emit {}: {} ranks on each node and --gpus-per-node {}: some ranks would have no GPU of "
        "their own; give as many GPUs, or let the ranks share by --share-gpu",
        flags.emit, *procs, options.gpus_per_node);
  }
  if (!flags.rdzv_id.empty()) {
    options.job_name = flags.rdzv_id;
  }
  if (!flags.stop_grace.empty()) {
    options.stop_grace =
        std::chrono::ceil<std::chrono::seconds>(flag_seconds("--stop-grace", flags.stop_grace));
  }
  if (!flags.max_restarts.empty()) {
    options.max_restarts = flag_number("--max-restarts", flags.max_restarts, 0, INT32_MAX);
  }
  if (flags.emit == "slurm") {  // nodes of a cluster share folders; an image has its own
    options.program = base::own_program();
    options.folder = std::filesystem::current_path().string();
  }
  std::copy_if(given.begin(), given.end(), std::back_inserter(options.flags),
               [](const std::string& flag) { return !is_taken_apart(flag); });
  return options;
}

}  // namespace lockstep::launch

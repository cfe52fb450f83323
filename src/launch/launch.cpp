#include "launch/launch.h"

#include <algorithm>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>
#include <utility>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/env.h"
#include "base/network.h"
#include "base/secret.h"
#include "image/image.h"
#include "launch/job/leader.h"
#include "launch/job/rendezvous.h"
#include "remote/host_address.h"

namespace lockstep::launch {

namespace {

void check_local_rank(const char* flag, int named, int num_ranks) {
  if (named >= num_ranks) {
    throw UsageError(
        "{} names the local rank {}, but with {} rank{} on a node the last is {}; leave it out, or "
        "give a larger --nproc-per-node",
        flag, named, num_ranks, num_ranks == 1 ? "" : "s", num_ranks - 1);
  }
}

// A flag that names a rank which no node has would hide the output that it was meant to show, or
// leave the file empty that it was meant to fill.
void check_output_ranks(const LaunchOptions& options) {
  int num_ranks = options.hosts.empty() ? options.procs_per_node : 0;
  for (const remote::HostEntry& host : options.hosts) {
    num_ranks = std::max(num_ranks, host.slots > 0 ? host.slots : options.procs_per_node);
  }
  if (options.life_fd >= 0 || options.hosts_count) {
    return;  // nodes that --hosts starts differ in size, and it has checked the largest it knows of
  }
  const OutputOptions& output = options.output;
  if (!output.shown.empty()) {
    check_local_rank("--local-ranks-filter",
                     *std::max_element(output.shown.begin(), output.shown.end()), num_ranks);
  }
  for (const auto& [flag, choice] :
       {std::pair("--redirects", &output.redirects), std::pair("--tee", &output.tee)}) {
    if (!choice->of_rank.empty()) {
      check_local_rank(flag, choice->of_rank.rbegin()->first, num_ranks);
    }
  }
}

// A descriptor below 3 that is closed would be handed to the next pipe, and workers would write
// into it.
void open_standard_fds() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) {
      const int null = ::open("/dev/null", O_RDWR);
      static_cast<void>(null);  // the lowest free number, which is fd
    }
  }
}

// The hosts learn the head's port and the secret from this process, so any port will do.
Rendezvous rendezvous_of_hosts(const LaunchOptions& options) {
  const std::string address =
      options.rendezvous.local_addr.empty()
          ? remote::rendezvous_address(options.hosts, remote::SshOptions::from_env(base::Env()))
          : base::interface_address(options.rendezvous.local_addr, "--local-addr");
  return {
      .job_id = options.rendezvous.job_id.empty() ? base::make_job_id() : options.rendezvous.job_id,
      .secret = own_job_secret(options.rendezvous.secret_file),
      .endpoints = {{address, 0}}};
}

}  // namespace

void check_options(const LaunchOptions& options) {
  if (options.command.empty()) {
    throw UsageError("no program given: name what the ranks shall run");
  }
  if (options.procs_per_node < 1 || options.procs_per_node > kMaxProcsPerNode) {
    throw UsageError("--nproc-per-node {} is not in [1, {}]", options.procs_per_node,
                     kMaxProcsPerNode);
  }
  if (options.min_nodes < 1 || options.max_nodes < options.min_nodes ||
      options.max_nodes > kMaxNodes) {
    throw UsageError("--nnodes {}:{} is not a range in [1, {}]", options.min_nodes,
                     options.max_nodes, kMaxNodes);
  }
  if (options.max_nodes > 1 && options.rendezvous.endpoint.empty() && options.hosts.empty()) {
    throw UsageError(
        "--nnodes {} needs a rendezvous: give --rdzv-endpoint HOST:PORT on every node, or "
        "--master-addr and --node-rank",
        options.max_nodes);
  }
  if (options.local_nodes < 1 || options.local_nodes > kMaxLocalNodes) {
    throw UsageError("--local-nodes {} is not in [1, {}]", options.local_nodes, kMaxLocalNodes);
  }
  if (options.stop_grace < options.stop_grace.zero()) {
    throw UsageError("--stop-grace is negative; 0 kills at once");
  }
  check_output_ranks(options);
}

int run_job(const LaunchOptions& options) {
  check_options(options);
  open_standard_fds();
  LaunchOptions job_options = options;
  choose_log_dir(job_options.output);
  if (!job_options.output.log_dir.empty()) {
    // A worker may change its folder; error.json must still land where it is looked for.
    job_options.output.log_dir =
        std::filesystem::absolute(job_options.output.log_dir).lexically_normal().string();
  }
  if (options.container && options.hosts.empty() && options.stages.empty()) {
    const bool is_builtin = options.container->runtime == image::ContainerRuntime::Builtin;
    try {
      const image::ImageInfo image =
          image::check_image(*options.container, is_builtin ? options.command.front() : "");
      if (is_builtin && !image.gpu.problem.empty()) {
        log::warn("launch", "{}", image.gpu.problem);  // which a job without a GPU need not mind
      }
    } catch (const image::ProgramError& error) {  // as where there is no image
      const std::string line = fmt::format("{}: {}\n", options.name, error.what());
      base::write_all(STDERR_FILENO, line.data(), line.size());
      return error.exit_code;
    }
  }
  return Leader(job_options, options.hosts.empty()
                                 ? plan_rendezvous(options.rendezvous, base::Env())
                                 : rendezvous_of_hosts(options))
      .run();
}

}  // namespace lockstep::launch

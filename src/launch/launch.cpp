#include "launch/launch.h"

#include <fcntl.h>
#include <filesystem>
#include <system_error>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/secret.h"
#include "base/store_server.h"
#include "base/unique_fd.h"
#include "launch/leader.h"
#include "launch/plan.h"

namespace lockstep {

namespace {

void check_options(const LaunchOptions& options) {
  if (options.command.empty()) {
    throw UsageError("no program given: what shall the ranks run?");
  }
  if (options.procs_per_node < 1 || options.procs_per_node > kMaxProcsPerNode) {
    throw UsageError("--nproc-per-node {} is not in [1, {}]", options.procs_per_node,
                     kMaxProcsPerNode);
  }
  if (options.local_nodes < 1 || options.local_nodes > kMaxLocalNodes) {
    throw UsageError("--local-nodes {} is not in [1, {}]", options.local_nodes, kMaxLocalNodes);
  }
  if (options.stop_grace < options.stop_grace.zero()) {
    throw UsageError("--stop-grace is negative; 0 kills at once");
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

void make_log_folders(const std::string& log_dir, const std::vector<NodePlan>& nodes) {
  for (const NodePlan& node : nodes) {
    for (const WorkerPlan& worker : node.workers) {
      std::error_code error;
      std::filesystem::create_directories(worker.log_folder, error);
      if (error) {
        throw UsageError("cannot make {}: {}; give a --log-dir that you can write to (it is {})",
                         worker.log_folder, error.message(), log_dir);
      }
    }
  }
}

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    entries.emplace_back(*entry);
  }
  return entries;
}

}  // namespace

int run_job(const LaunchOptions& options) {
  check_options(options);
  open_standard_fds();
  LaunchOptions job_options = options;
  if (!options.output.log_dir.empty()) {
    // A worker may change its folder; error.json must still land where it is looked for.
    job_options.output.log_dir =
        std::filesystem::absolute(options.output.log_dir).lexically_normal().string();
  }
  JobIdentity job{.id = make_job_id(), .secret = make_secret()};
  StoreServer store({.listen = {"127.0.0.1", 0}, .job_id = job.id, .secret = job.secret});
  const ReservedPort master = reserve_port();
  job.store = store.endpoint();
  job.master_port = master.port;

  std::vector<NodePlan> nodes = plan_nodes(job_options, job, own_environment());
  if (!options.output.log_dir.empty()) {
    make_log_folders(job_options.output.log_dir, nodes);
  }
  Leader leader(job_options, std::move(nodes));
  leader.start_agents();
  store.start();  // only now: a process with threads must not fork ones that go on without exec
  const Report report = leader.wait();
  const bool is_quiet = options.quiet_code != 0 && report.exit_code == options.quiet_code;
  if (!report.text.empty() && !is_quiet) {
    const ssize_t ignored = ::write(STDERR_FILENO, report.text.data(), report.text.size());
    static_cast<void>(ignored);
  }
  return report.exit_code;
}

}  // namespace lockstep

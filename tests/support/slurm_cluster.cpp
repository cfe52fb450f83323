#include "support/slurm_cluster.h"

#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/secret.h"

namespace lockstep::test {

namespace {

constexpr auto kStartTime = std::chrono::seconds(30);
constexpr auto kStopTime = std::chrono::seconds(5);
constexpr auto kClientTime = std::chrono::seconds(30);
constexpr auto kJobTime = std::chrono::seconds(60);
constexpr size_t kLogTail = 2000;

constexpr const char* kMunged = "/usr/sbin/munged";
constexpr const char* kController = "/usr/sbin/slurmctld";
constexpr const char* kDaemon = "/usr/sbin/slurmd";

// Every path is absolute and in the folder; no part of it asks for cgroups, which are the host's.
constexpr const char* kConfig = R"(ClusterName=lockstep
SlurmctldHost={head}({head_address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=10
)";

void write_text(const std::string& path, const std::string& text, int mode) {
  const base::UniqueFd file = base::open_file(path, O_WRONLY | O_CREAT | O_TRUNC, mode);
  base::write_all(file.get(), text.data(), text.size());
}

std::string read_text(const std::string& path) {
  return std::filesystem::exists(path) ? base::read_file(path) : "";
}

// The value of NAME in "NAME=value OTHER=value ...".
std::string field(const std::string& line, const std::string& name) {
  const size_t begin = (" " + line).find(" " + name + "=");
  if (begin == std::string::npos) {
    return "";
  }
  const size_t value = begin + name.size() + 1;
  return line.substr(value, line.find_first_of(" \n", value) - value);
}

template <typename Condition>
bool wait_until(base::Deadline deadline, Condition condition) {
  while (!condition()) {
    if (deadline.expired()) {
      return false;
    }
    ::poll(nullptr, 0, 20);
  }
  return true;
}

}  // namespace

std::optional<std::string> slurm_refusal() {
  for (const char* program : {kMunged, kController, kDaemon, "/usr/bin/srun"}) {
    if (::access(program, X_OK) != 0) {
      return fmt::format("no {} here: apt-get install slurmctld slurmd slurm-client munge",
                         program);
    }
  }
  return nodes_refusal();
}

SlurmCluster::SlurmCluster(const TestNodes& nodes, SlurmOptions options)
    : nodes_(nodes), options_(std::move(options)) {
  write_files();
  const std::string& folder = options_.folder;
  // --force: the folder may be writable for others, which munged would not like of its own.
  start(0, {kMunged, "--foreground", "--force", "--key-file=" + folder + "/munge.key",
            "--socket=" + folder + "/munge.sock", "--pid-file=" + folder + "/munged.pid",
            "--log-file=" + folder + "/munged.log", "--seed-file=" + folder + "/munged.seed"});
  if (!wait_until(base::Deadline::after(kStartTime),
                  [&] { return std::filesystem::exists(folder + "/munge.sock"); })) {
    throw IoError("slurm: munged does not start: {}", logs());
  }
  start(0, {kController, "-D", "-c", "-f", folder + "/slurm.conf"});
  for (int node = 0; node < nodes_.size(); ++node) {
    start(node, {kDaemon, "-D", "-N", nodes_.host_name(node), "-f", folder + "/slurm.conf"});
  }
  if (!wait_until(base::Deadline::after(kStartTime), [this] { return is_idle(); })) {
    throw IoError("slurm: the nodes are not idle after {}: {}", base::to_text(kStartTime), logs());
  }
}

SlurmCluster::~SlurmCluster() {
  // The controller last, munged after it: each may want to tell the next that it goes.
  for (auto daemon = daemons_.rbegin(); daemon != daemons_.rend(); ++daemon) {
    daemon->kill(SIGTERM);
  }
  const base::Deadline deadline = base::Deadline::after(kStopTime);
  for (auto& daemon : daemons_) {
    daemon.wait(deadline);
  }
}

void SlurmCluster::write_files() const {
  const std::string& folder = options_.folder;
  std::string config = fmt::format(
      kConfig, fmt::arg("head", nodes_.host_name(0)), fmt::arg("head_address", nodes_.address(0)),
      fmt::arg("folder", folder), fmt::arg("proctrack", options_.proctrack));
  for (int node = 0; node < nodes_.size(); ++node) {
    config += fmt::format("NodeName={} NodeAddr={} CPUs={} State=UNKNOWN\n", nodes_.host_name(node),
                          nodes_.address(node), options_.cpus_per_node);
  }
  config += "PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n";
  std::filesystem::create_directory(folder + "/state");
  write_text(folder + "/slurm.conf", config, 0644);
  write_text(folder + "/munge.key", base::make_secret(), 0600);
}

void SlurmCluster::start(int node, std::vector<std::string> argv) {
  // What it says before it has a log.
  const base::UniqueFd out =
      base::open_file(fmt::format("{}/daemon{}.log", options_.folder, daemons_.size()),
                      O_WRONLY | O_CREAT | O_APPEND);
  daemons_.emplace_back(nodes_.inside(node, {.argv = std::move(argv),
                                             .env = client_env(),
                                             .stdout_fd = out.get(),
                                             .stderr_fd = out.get()}));
}

bool SlurmCluster::is_idle() const {
  const base::Output output =
      base::run_process(client({.argv = {"sinfo", "--noheader", "--format=%T %D"}}),
                        base::Deadline::after(kClientTime));
  return output.out == fmt::format("idle {}\n", nodes_.size());
}

std::map<std::string, std::string> SlurmCluster::client_env() const {
  return {{"SLURM_CONF", options_.folder + "/slurm.conf"}};
}

base::ProcessOptions SlurmCluster::client(base::ProcessOptions options) const {
  options.env.merge(client_env());
  return nodes_.inside(0, std::move(options));
}

base::Output SlurmCluster::srun(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), "srun");
  return base::run_process(client({.argv = std::move(arguments)}), base::Deadline::after(kJobTime));
}

std::string SlurmCluster::run_client(std::vector<std::string> argv) const {
  const base::Output output =
      base::run_process(client({.argv = argv}), base::Deadline::after(kClientTime));
  if (!output.status.ok()) {
    throw IoError("slurm: {} failed ({}): {}", argv[0], output.status.text(), output.err);
  }
  return output.out;
}

std::string SlurmCluster::sbatch(const std::string& script, std::vector<std::string> flags) const {
  const std::string file = options_.folder + "/submitted.sh";
  write_text(file, script, 0644);  // sbatch sends its text: the next one may have the same name
  std::vector<std::string> argv{"sbatch", "--parsable", "--output=" + options_.folder + "/%j.out",
                                "--error=" + options_.folder + "/%j.err"};
  argv.insert(argv.end(), flags.begin(), flags.end());
  argv.push_back(file);
  const std::string answer = run_client(argv);
  return answer.substr(0, answer.find_first_of(";\n"));
}

std::string SlurmCluster::job_output(const std::string& job) const {
  return read_text(fmt::format("{}/{}.out", options_.folder, job));
}

base::Output SlurmCluster::wait_for_job(const std::string& job) const {
  base::Output output;
  std::string line;
  // Not `sbatch --wait`, which looks every ten seconds.
  const auto has_ended = [&] {
    line = run_client({"scontrol", "--oneliner", "show", "job", job});
    const std::string state = field(line, "JobState");
    return state != "PENDING" && state != "CONFIGURING" && state != "RUNNING" &&
           state != "SUSPENDED" && state != "COMPLETING";
  };
  if (!wait_until(base::Deadline::after(kJobTime), has_ended)) {
    output.timed_out = true;
    run_client({"scancel", job});
  }
  std::sscanf(field(line, "ExitCode").c_str(), "%d:%d", &output.status.code, &output.status.signal);
  output.out = job_output(job);
  output.err = read_text(fmt::format("{}/{}.err", options_.folder, job));
  return output;
}

base::Output SlurmCluster::sbatch_and_wait(const std::string& script,
                                           std::vector<std::string> flags) const {
  return wait_for_job(sbatch(script, std::move(flags)));
}

std::string SlurmCluster::logs() const {
  std::string text;
  for (const auto& entry : std::filesystem::directory_iterator(options_.folder)) {
    if (entry.path().extension() == ".log") {
      const std::string log = read_text(entry.path());
      text += fmt::format("\n{}:\n{}", entry.path().filename().string(),
                          log.substr(log.size() - std::min(log.size(), kLogTail)));
    }
  }
  return text;
}

}  // namespace lockstep::test

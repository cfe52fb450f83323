#pragma once

// A real Slurm between emulated machines: slurmctld on node 0, a slurmd on each, munged for all,
// with keys, sockets, logs and state in one folder. Nothing of the host's own Slurm is read.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/process/process.h"
#include "support/nodes.h"

namespace lockstep::test {

struct SlurmOptions {
  std::string folder;     // REQUIRED: empty, outlives the nodes
  int cpus_per_node = 8;  // as Slurm shall believe
  // How signals reach a step. "linuxproc": every process in it. "pgid": its tasks only, as with
  // cgroups on a real cluster; a batch job then takes three seconds more to end.
  std::string proctrack = "linuxproc";
};

// Goes with the object; jobs that still run go with the nodes, which must outlive it.
// Threads: not thread-safe.
class SlurmCluster {
 public:
  // Returns once all nodes are idle, after a second or less. Throws IoError, with the end of the
  // logs, if they are not in time.
  SlurmCluster(const TestNodes& nodes, SlurmOptions options);
  ~SlurmCluster();
  SlurmCluster(const SlurmCluster&) = delete;
  SlurmCluster& operator=(const SlurmCluster&) = delete;

  // What Slurm's programs must have in their environment to find this cluster.
  std::map<std::string, std::string> client_env() const;

  // A program on node 0 with that environment: for Process and run_process().
  base::ProcessOptions client(base::ProcessOptions options) const;

  // `srun ARGUMENTS` on node 0, to its end.
  base::Output srun(std::vector<std::string> arguments) const;

  // Submits a script, with further flags of sbatch, and returns the job's number.
  std::string sbatch(const std::string& script, std::vector<std::string> flags = {}) const;

  // What the job's script and steps wrote to their output so far.
  std::string job_output(const std::string& job) const;

  // The end of a job: how its script ended, and what it wrote to its output and error. timed_out if
  // there is none within a minute; the job is then cancelled.
  base::Output wait_for_job(const std::string& job) const;
  base::Output sbatch_and_wait(const std::string& script,
                               std::vector<std::string> flags = {}) const;

  // The last lines of every log: for the messages of tests that fail.
  std::string logs() const;

 private:
  void write_files() const;
  void start(int node, std::vector<std::string> argv);
  bool is_idle() const;
  std::string run_client(std::vector<std::string> argv) const;

  const TestNodes& nodes_;
  SlurmOptions options_;
  std::vector<base::Process> daemons_;
};

// Why there can be no such cluster here, if there can be none.
std::optional<std::string> slurm_refusal();

}  // namespace lockstep::test

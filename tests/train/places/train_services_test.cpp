// A training that ssh or Slurm brings to its machines, killed and resumed there.

#include <algorithm>

#include <fmt/format.h>

#include "launch/scheduler/slurm_fixture.h"
#include "remote/ssh_fixture.h"
#include "train/places/places.h"

namespace lockstep::test {
namespace {

std::vector<pid_t> processes_of(const TestNodes& nodes) {
  std::vector<pid_t> all;
  for (int node = 0; node < nodes.size(); ++node) {
    const std::vector<pid_t> some = nodes.processes(node);
    all.insert(all.end(), some.begin(), some.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

// Those that were not there before.
std::vector<pid_t> new_processes(const TestNodes& nodes, const std::vector<pid_t>& before) {
  const std::vector<pid_t> now = processes_of(nodes);
  std::vector<pid_t> found;
  std::set_difference(now.begin(), now.end(), before.begin(), before.end(),
                      std::back_inserter(found));
  return found;
}

class TrainingOverSsh : public SshTest {};

TEST_F(TrainingOverSsh, IsResumed) {
  const TempFolder folder;
  const std::string checkpoints = folder.at("checkpoints");
  const std::vector<pid_t> servers = processes_of(*nodes_);
  const auto start = [&] {
    std::vector<std::string> words{"--no-prefix", "--hosts", "node0,node1", "--nproc-per-node=2",
                                   "--"};
    const std::vector<std::string> program = training(checkpoints);
    words.insert(words.end(), program.begin(), program.end());
    std::vector<std::unique_ptr<Job>> jobs;
    jobs.push_back(std::make_unique<Job>(
        words,
        JobPlace{
            .env = {{"LOCKSTEP_SSH", fmt::format("{}", fmt::join(servers_->client(), " "))}},
            .inside = [](base::ProcessOptions o) { return nodes_->inside(0, std::move(o)); }}));
    return std::make_unique<JobsOfTraining>(std::move(jobs),
                                            [&] { return new_processes(*nodes_, servers); });
  };
  expect_survives_a_kill(start, checkpoints);
  EXPECT_TRUE(wait_until([&] { return new_processes(*nodes_, servers).empty(); }));
}

class TrainingUnderSlurm : public SlurmTest {};

// A batch job of two nodes.
class SlurmTraining : public Training {
 public:
  SlurmTraining(const SlurmCluster& cluster, const std::string& script)
      : cluster_(cluster), job_(cluster.sbatch(script)) {}
  std::string out() const override { return cluster_.job_output(job_); }
  std::string err() const override { return err_ + cluster_.logs(); }
  void kill() override {
    const base::Output output =
        base::run_process(cluster_.client({.argv = {"scancel", "--full", "--signal=KILL", job_}}),
                          base::Deadline::after(kPatience));
    EXPECT_TRUE(output.status.ok()) << output.err;
    EXPECT_FALSE(cluster_.wait_for_job(job_).timed_out);
  }
  int wait() override {
    const base::Output output = cluster_.wait_for_job(job_);
    err_ = output.err;
    return output.timed_out ? -1 : output.status.shell_code();
  }

 private:
  const SlurmCluster& cluster_;
  const std::string job_;
  std::string err_;
};

TEST_F(TrainingUnderSlurm, IsResumed) {
  const TempFolder place;
  const std::string checkpoints = place.at("checkpoints");
  const std::vector<pid_t> daemons = processes_of(nodes());
  const std::string script = fmt::format(
      "#!/bin/sh\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n"
      "exec {} run --no-prefix --nproc-per-node=2 -- {}\n",
      lockstep_program(), fmt::join(training(checkpoints), " "));
  expect_survives_a_kill(
      [&] {
        EXPECT_TRUE(wait_until([&] { return new_processes(nodes(), daemons).empty(); }))
            << "somebody is left of the job before";
        return std::make_unique<SlurmTraining>(cluster(), script);
      },
      checkpoints);
}

}  // namespace
}  // namespace lockstep::test

// Real Slurm on two emulated machines: that it works, and that lockstep understands what it says.

#include "support/slurm_cluster.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "launch/scheduler/emit.h"
#include "launch/scheduler/slurm.h"
#include "launch/scheduler/slurm_fixture.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class Slurm : public SlurmTest {};

// Of what `env` printed.
base::Env env_of(const std::string& text) {
  std::map<std::string, std::string> variables;
  for (const auto& line : lines(text)) {
    variables[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
  }
  return base::Env([variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST_F(Slurm, RunsATaskOnEachNode) {
  const base::Output output = cluster().srun({"-N2", "-n2", "hostname"});
  EXPECT_TRUE(output.status.ok()) << output.err << cluster().logs();
  EXPECT_THAT(lines(output.out), UnorderedElementsAre("node0", "node1"));
}

TEST_F(Slurm, TellsATaskItsPlace) {
  const std::string script = "env > " + folder().path() + "/env.$SLURM_NODEID";
  const base::Output output =
      cluster().srun({"-N2", "--ntasks-per-node=1", "--cpus-per-task=3", "sh", "-c", script});
  ASSERT_TRUE(output.status.ok()) << output.err << cluster().logs();
  for (int node = 0; node < nodes().size(); ++node) {
    const base::Env env = env_of(base::read_file(folder().path() + "/env." + std::to_string(node)));
    const auto place = launch::slurm_step(env);
    ASSERT_TRUE(place);
    EXPECT_EQ(place->node, node);
    EXPECT_EQ(place->num_nodes, 2);
    EXPECT_THAT(place->hosts, ElementsAre("node0", "node1"));
    EXPECT_EQ(place->cpus_on_node, 3);
    EXPECT_FALSE(launch::slurm_nodes_without_step(env));
  }
}

TEST_F(Slurm, SeveralTasksOnANodeAreRefused) {
  const base::Output output = cluster().srun({"-N2", "--ntasks-per-node=2", "env"});
  ASSERT_TRUE(output.status.ok()) << output.err;
  try {
    launch::slurm_step(env_of(output.out));
    ADD_FAILURE() << "it was accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("srun started 2 tasks on this node"));
  }
}

TEST_F(Slurm, ABatchScriptIsNoStep) {
  const base::Output output = cluster().sbatch_and_wait(
      "#!/bin/sh\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\nenv\nexit 7\n");
  EXPECT_EQ(output.status.code, 7) << output.err << cluster().logs();
  const base::Env env = env_of(output.out);
  EXPECT_FALSE(launch::slurm_step(env));
  EXPECT_EQ(launch::slurm_nodes_without_step(env), 2);
}

// The written script under the real sbatch and srun: a stand-in for lockstep shows what it got.
TEST_F(Slurm, RunsTheEmittedScript) {
  const std::string program = folder().file(
      "lockstep",
      "#!/bin/sh\n"
      "echo \"$(hostname) $SLURM_CPUS_ON_NODE cores, secret of ${#LOCKSTEP_JOB_SECRET}: $*\"\n",
      0755);
  const std::string script = launch::emit_slurm({.job_name = "train",
                                                 .num_nodes = 2,
                                                 .procs_per_node = "4",
                                                 .cpus_per_node = 4,
                                                 .program = program,
                                                 .command = {"./train", "two words", "a\r\nb"}});
  const base::Output output = cluster().sbatch_and_wait(script);
  EXPECT_TRUE(output.status.ok()) << output.err << cluster().logs();
  for (const char* node : {"node0", "node1"}) {
    EXPECT_THAT(output.out,
                HasSubstr(std::string(node) +
                          " 4 cores, secret of 64: run --nproc-per-node 4 --stop-grace 120 -- "
                          "./train two words a\r\nb\n"));
  }
}

}  // namespace
}  // namespace lockstep::test

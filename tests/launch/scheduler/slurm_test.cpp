#include "launch/scheduler/slurm.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/refusal.h"

namespace lockstep {
namespace {

using test::refusal;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Variables = std::map<std::string, std::string>;

base::Env env_of(const Variables& variables) {
  return base::Env([variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

// What a task of `srun -N3 -n3` in an allocation of four nodes sees.
Variables step_variables() {
  return {{"SLURM_JOB_ID", "77"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", "1"},
          {"SLURM_NODEID", "1"},
          {"SLURM_STEP_NUM_NODES", "3"},
          {"SLURM_NNODES", "3"},
          {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"},
          {"SLURM_STEP_NODELIST", "gpu[09-11]"},
          {"SLURM_JOB_NODELIST", "gpu[09-12]"},
          {"SLURM_JOB_NUM_NODES", "4"},
          {"SLURM_CPUS_ON_NODE", "64"},
          {"SLURM_GPUS_ON_NODE", "8"},
          {"SLURMD_NODENAME", "gpu10"}};
}

std::string step_refusal(const std::string& name, const std::string& value) {
  Variables variables = step_variables();
  variables[name] = value;
  return refusal([&] { launch::slurm_step(env_of(variables)); });
}

TEST(SlurmStep, SaysWhereSrunPutThisTask) {
  const auto place = launch::slurm_step(env_of(step_variables()));
  ASSERT_TRUE(place);
  EXPECT_EQ(place->job_id, "77");
  EXPECT_EQ(place->step_id, "0");
  EXPECT_EQ(place->node, 1);
  EXPECT_EQ(place->num_nodes, 3);
  EXPECT_THAT(place->hosts, ElementsAre("gpu09", "gpu10", "gpu11"));
  EXPECT_EQ(place->gpus_on_node, 8);
  EXPECT_EQ(place->cpus_on_node, 64);
  EXPECT_FALSE(launch::slurm_nodes_without_step(env_of(step_variables())));
}

TEST(SlurmStep, TakesTheJobsVariablesWhereTheStepsAreMissing) {
  Variables variables = step_variables();
  variables.erase("SLURM_STEP_NUM_NODES");
  variables.erase("SLURM_STEP_NODELIST");
  variables.erase("SLURM_STEP_TASKS_PER_NODE");
  variables.erase("SLURM_GPUS_ON_NODE");
  variables["SLURM_NNODES"] = "4";
  const auto place = launch::slurm_step(env_of(variables));
  ASSERT_TRUE(place);
  EXPECT_EQ(place->num_nodes, 4);
  EXPECT_THAT(place->hosts, SizeIs(4));
  EXPECT_FALSE(place->gpus_on_node);
}

TEST(SlurmStep, ThatLockstepCannotUseIsRefused) {
  EXPECT_EQ(step_refusal("SLURM_STEP_TASKS_PER_NODE", "2(x2),1"),
            "srun started 2 tasks on this node; lockstep run wants one per node and starts the "
            "ranks itself: srun --ntasks-per-node=1, and --nproc-per-node 2 for lockstep run");
  EXPECT_EQ(step_refusal("SLURM_STEP_NODELIST", "gpu[1-2]"),
            "SLURM_STEP_NODELIST=gpu[1-2] names 2 hosts, but this srun step has 3 nodes");
  EXPECT_THAT(step_refusal("SLURM_STEP_NODELIST", "gpu[1-"),
              HasSubstr("SLURM_STEP_NODELIST=gpu[1-"));
  EXPECT_THAT(step_refusal("SLURM_NODEID", "3"), HasSubstr("SLURM_NODEID"));
  EXPECT_THAT(step_refusal("SLURM_STEP_NUM_NODES", "many"), HasSubstr("SLURM_STEP_NUM_NODES"));
  EXPECT_THAT(step_refusal("SLURM_NODEID", ""), HasSubstr("SLURM_NODEID is not set"));
  Variables variables = step_variables();
  variables.erase("SLURM_STEP_NODELIST");
  variables.erase("SLURM_JOB_NODELIST");
  EXPECT_THAT(refusal([&] { launch::slurm_step(env_of(variables)); }),
              HasSubstr("SLURM_STEP_NODELIST"));
}

TEST(SlurmStep, IsNoBatchScriptNorShell) {
  Variables batch = step_variables();
  batch.erase("SLURM_STEP_ID");
  EXPECT_FALSE(launch::slurm_step(env_of(batch)));
  EXPECT_EQ(launch::slurm_nodes_without_step(env_of(batch)), 4);
  batch["SLURM_STEP_ID"] = "4294967290";  // salloc with an interactive step
  EXPECT_FALSE(launch::slurm_step(env_of(batch)));
  EXPECT_EQ(launch::slurm_nodes_without_step(env_of(batch)), 4);
  EXPECT_FALSE(launch::slurm_step(env_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}})));
  EXPECT_FALSE(launch::slurm_nodes_without_step(env_of({})));
}

TEST(SlurmAllocation, OfOneNodeNeedsNoSrunOnThatNode) {
  Variables variables{{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "1"}};
  EXPECT_EQ(launch::slurm_nodes_without_step(env_of(variables)),
            1);  // salloc's shell, on the login node
  variables["SLURMD_NODENAME"] = "gpu1";
  EXPECT_FALSE(launch::slurm_nodes_without_step(env_of(variables)));  // sbatch's script
}

TEST(SrunCommand, StartsOneLauncherPerNode) {
  const auto argv = launch::srun_command(
      {.num_nodes = 3, .program = "/opt/lockstep", .arguments = {"run", "./a b", "--x"}});
  EXPECT_EQ(argv.front(), "srun");
  for (const char* argument : {"--nodes=3", "--ntasks=3", "--ntasks-per-node=1"}) {
    EXPECT_THAT(argv, Contains(argument));
  }
  EXPECT_THAT(std::vector<std::string>(argv.end() - 4, argv.end()),
              ElementsAre("/opt/lockstep", "run", "./a b", "--x"));
}

}  // namespace
}  // namespace lockstep

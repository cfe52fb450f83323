#include "comm/start/launch_env.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using Variables = std::map<std::string, std::string>;
using StoreHost = comm::LaunchEnv::StoreHost;
using ::testing::HasSubstr;

comm::LaunchEnv read(Variables variables) {
  return comm::read_launch_env(base::Env(
      [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      }));
}

constexpr const char* kSecret = "c0ffee0123456789f00dfeedbeefcafe";
const Variables kLockstep = {{"LOCKSTEP_RANK", "3"},       {"LOCKSTEP_WORLD_SIZE", "8"},
                             {"LOCKSTEP_STORE", "a:1234"}, {"LOCKSTEP_JOB_ID", "job"},
                             {"LOCKSTEP_GENERATION", "3"}, {"LOCKSTEP_JOB_SECRET", kSecret}};
const Variables kTorchrun = {{"RANK", "1"},
                             {"WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "b"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "run"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables kMpirun = {{"OMPI_COMM_WORLD_RANK", "2"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                           {"PMIX_NAMESPACE", "ns1"}};
const Variables kSrun = {{"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_JOB_ID", "42"},
                         {"SLURM_STEP_NODELIST", "node[3-5,9]"},
                         {"SLURM_STEP_NUM_NODES", "2"}};
const Variables kBare = {
    {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "c"}, {"MASTER_PORT", "1"}};

Variables merge(Variables first, const Variables& second) {
  first.insert(second.begin(), second.end());
  return first;
}

void expect_usage_error(Variables variables, const std::string& part) {
  try {
    read(std::move(variables));
    FAIL() << "accepted; expected: " << part;
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(LaunchEnv, NothingSetIsAGroupOfOne) {
  const comm::LaunchEnv launch = read({});
  EXPECT_EQ(launch.size, 1);
  EXPECT_EQ(launch.store_host, StoreHost::None);
}

TEST(LaunchEnv, LockstepRun) {
  const comm::LaunchEnv launch = read(kLockstep);
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.size, 8);
  EXPECT_EQ(launch.store_host, StoreHost::Launcher);
  EXPECT_EQ(launch.store.text(), "a:1234");
  EXPECT_EQ(launch.job_id, "job/g3") << "a rank belongs to one start of the job";
  EXPECT_EQ(launch.secret, kSecret);
}

TEST(LaunchEnv, ASecretThatCanBeGuessedIsRefusedWhoeverPassesItOn) {
  for (const Variables& launcher : {kTorchrun, kMpirun, kSrun, kBare}) {
    EXPECT_EQ(read(launcher).secret, "");
    EXPECT_EQ(read(merge({{"LOCKSTEP_JOB_SECRET", kSecret}}, launcher)).secret, kSecret);
    expect_usage_error(merge({{"LOCKSTEP_JOB_SECRET", "swordfish"}}, launcher),
                       "LOCKSTEP_JOB_SECRET can be guessed");
  }
}

TEST(LaunchEnv, TorchrunWithAndWithoutTheAgentsStore) {
  EXPECT_EQ(read(kTorchrun).store_host, StoreHost::TorchStore);
  EXPECT_EQ(read(kTorchrun).store.text(), "b:29500");
  Variables without = kTorchrun;
  without["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_EQ(read(without).store_host, StoreHost::RankZero);
}

TEST(LaunchEnv, TorchrunsRestartsAreJobsOfTheirOwn) {
  EXPECT_NE(read(kTorchrun).job_id,
            read(merge({{"TORCHELASTIC_RESTART_COUNT", "1"}}, kTorchrun)).job_id);
}

TEST(LaunchEnv, MpirunOnOneHostNeedsNoAddress) {
  const comm::LaunchEnv launch = read(kMpirun);
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.store_host, StoreHost::RankZero);
  EXPECT_EQ(launch.store.host, "127.0.0.1");
  EXPECT_EQ(launch.store.port, read(kMpirun).store.port) << "the same on all ranks";
  Variables two_hosts = kMpirun;
  two_hosts["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  expect_usage_error(two_hosts, "MASTER_ADDR");
  EXPECT_EQ(read(merge(two_hosts, {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "9"}})).store.text(),
            "h:9");
}

TEST(LaunchEnv, SrunMeetsAtTheFirstHostOfTheStep) {
  EXPECT_EQ(read(kSrun).rank, 5);
  EXPECT_EQ(read(kSrun).store.host, "node3");
  EXPECT_EQ(read(merge({{"SLURM_STEP_NODELIST", "a,b[1-2]"}}, kSrun)).store.host, "a");
  EXPECT_EQ(read(merge({{"SLURM_STEP_NODELIST", "n[07,09]"}}, kSrun)).store.host, "n07");
  EXPECT_EQ(read(merge({{"SLURM_STEP_NODELIST", "r[1-2]n[1-4]"}}, kSrun)).store.host, "r1n1");
  EXPECT_EQ(read(merge({{"SLURM_STEP_NUM_NODES", "1"}}, kSrun)).store.host, "127.0.0.1");
  expect_usage_error(merge({{"SLURM_STEP_NODELIST", "n[7"}}, kSrun), "SLURM_STEP_NODELIST");
}

TEST(LaunchEnv, ABatchScriptIsNoRank) {
  Variables batch = kSrun;
  batch.erase("SLURM_STEP_ID");
  EXPECT_EQ(read(batch).size, 1);
}

TEST(LaunchEnv, BareRankNeedsAnAddress) {
  EXPECT_EQ(read(kBare).store_host, StoreHost::RankZero);
  expect_usage_error({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR");
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).store_host, StoreHost::None);
}

TEST(LaunchEnv, TheOrderOfBelief) {
  const Variables all = merge(merge(merge(kLockstep, kTorchrun), kMpirun), kSrun);
  EXPECT_EQ(read(all).source, "lockstep run");
  EXPECT_EQ(read(merge(merge(kTorchrun, kMpirun), kSrun)).source, "torchrun");
  EXPECT_EQ(read(merge(merge(kMpirun, kSrun), kBare)).source, "mpirun");
  EXPECT_EQ(read(merge(kSrun, kBare)).source, "srun");
  EXPECT_EQ(read(kBare).source, "RANK and WORLD_SIZE");
}

TEST(LaunchEnv, ContradictionsAreNamed) {
  expect_usage_error({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK=2 is not below WORLD_SIZE=2");
  expect_usage_error({{"RANK", "0"}}, "WORLD_SIZE is not");
  expect_usage_error({{"RANK", "x"}, {"WORLD_SIZE", "2"}}, "RANK=x");
  expect_usage_error({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK=-1");
  expect_usage_error({{"LOCKSTEP_RANK", "0"}, {"LOCKSTEP_WORLD_SIZE", "2"}}, "LOCKSTEP_STORE");
  expect_usage_error(merge({{"MASTER_PORT", "70000"}}, kBare), "MASTER_PORT=70000");
}

}  // namespace
}  // namespace lockstep

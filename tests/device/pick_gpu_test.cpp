#include "device/pick_gpu.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep::device {
namespace {

using Variables = std::map<std::string, std::string>;

base::Env env_of(const Variables& variables) {
  return base::Env([variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(PickGpu, FollowsTheLocalRankOfEveryLauncher) {
  struct Case {
    Variables variables;
    int num_gpus;
    int gpu;
  };
  const Case cases[] = {
      {{}, 1, 0},
      {{}, 8, 0},
      {{{"LOCAL_RANK", "3"}}, 8, 3},
      {{{"OMPI_COMM_WORLD_LOCAL_RANK", "2"}}, 4, 2},
      {{{"MPI_LOCALRANKID", "1"}}, 4, 1},
      {{{"SLURM_LOCALID", "5"}}, 8, 5},
      // lockstep's own word counts before those that it may have inherited.
      {{{"LOCAL_RANK", "1"}, {"SLURM_LOCALID", "0"}}, 2, 1},
      // Slurm shows each task its own GPU as number 0.
      {{{"SLURM_LOCALID", "3"}, {"SLURM_GPUS_PER_TASK", "1"}}, 1, 0},
      {{{"SLURM_LOCALID", "2"}, {"SLURM_GPUS_PER_TASK", "2"}}, 2, 0},
      {{{"SLURM_LOCALID", "1"}, {"SLURM_GPUS_PER_TASK", "a100:2"}}, 2, 0},
      {{{"SLURM_LOCALID", "1"}, {"SLURM_GPUS_PER_TASK", "2"}, {"LOCKSTEP_GPU_INDEX", "1"}}, 2, 1},
      // Not with --gpu-bind=none: each sees those of all.
      {{{"SLURM_LOCALID", "1"}, {"SLURM_GPUS_PER_TASK", "1"}}, 4, 1},
      // Which does not hold for the ranks of a launcher that is such a task.
      {{{"LOCAL_RANK", "1"}, {"SLURM_LOCALID", "0"}, {"SLURM_GPUS_PER_TASK", "2"}}, 2, 1},
      // `lockstep run --virtual-local-rank`, and what a launcher said before LOCAL_RANK was there.
      {{{"LOCKSTEP_LOCAL_RANK", "1"}, {"LOCAL_RANK", "0"}, {"CUDA_VISIBLE_DEVICES", "7"}}, 1, 0},
      {{{"LOCKSTEP_LOCAL_RANK", "2"}, {"SLURM_LOCALID", "1"}}, 4, 2},
      // The launcher's word counts: the rank sees its own GPU only, or its node is emulated.
      {{{"LOCKSTEP_LOCAL_RANK", "3"}, {"LOCKSTEP_GPU_INDEX", "0"}}, 1, 0},
      {{{"LOCKSTEP_LOCAL_RANK", "1"}, {"LOCKSTEP_GPU_INDEX", "3"}}, 4, 3},
      {{{"LOCKSTEP_LOCAL_RANK", "0"}, {"LOCKSTEP_GPU_INDEX", "3"}, {"LOCKSTEP_SHARE_GPU", "1"}},
       2,
       1},
      {{{"LOCAL_RANK", "5"}, {"LOCKSTEP_SHARE_GPU", "1"}}, 2, 1},
      {{{"LOCAL_RANK", "4"}, {"LOCKSTEP_SHARE_GPU", "1"}}, 1, 0},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(pick_gpu(env_of(one.variables), one.num_gpus), one.gpu);
  }
}

TEST(PickGpu, MoreRanksThanGpusAreRefusedWithTheWayOut) {
  try {
    pick_gpu(env_of({{"LOCAL_RANK", "2"}}), 2);
    FAIL() << "no error";
  } catch (const UsageError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("local rank 2"), std::string::npos) << text;
    EXPECT_NE(text.find("2 GPUs"), std::string::npos) << text;
    EXPECT_NE(text.find("--share-gpu"), std::string::npos) << text;
  }
  EXPECT_THROW(pick_gpu(env_of({{"LOCAL_RANK", "1"}, {"LOCKSTEP_SHARE_GPU", "0"}}), 1), UsageError);
}

std::string refusal(const Variables& variables, int num_gpus) {
  try {
    pick_gpu(env_of(variables), num_gpus);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

// On emulated nodes LOCAL_RANK repeats; two ranks must not meet on one GPU because of it.
TEST(PickGpu, RanksOfTwoEmulatedNodesDoNotShareByAccident) {
  const std::string text = refusal({{"LOCKSTEP_LOCAL_RANK", "0"}, {"LOCKSTEP_GPU_INDEX", "1"}}, 1);
  EXPECT_NE(text.find("local rank 0, which is number 1 on this host"), std::string::npos) << text;
  EXPECT_NE(text.find("start at most one rank on this host"), std::string::npos) << text;
}

// `srun --gpus-per-task=1 lockstep run --nproc-per-node 2`: both would have taken Slurm's GPU 0.
TEST(PickGpu, RanksInsideASlurmTaskDoNotShareByAccident) {
  EXPECT_NE(refusal({{"LOCKSTEP_LOCAL_RANK", "1"},
                     {"LOCKSTEP_GPU_INDEX", "1"},
                     {"SLURM_LOCALID", "0"},
                     {"SLURM_GPUS_PER_TASK", "1"}},
                    1),
            "");
  EXPECT_NE(refusal({{"LOCAL_RANK", "1"}, {"SLURM_LOCALID", "0"}, {"SLURM_GPUS_PER_TASK", "1"}}, 1),
            "");
}

// `mpirun` in a batch script, which is a task of Slurm's: its ranks inherit that one's number.
TEST(PickGpu, RanksOfMpiInsideASlurmTaskDoNotShareByAccident) {
  for (const char* variable : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}) {
    EXPECT_NE(refusal({{variable, "1"}, {"SLURM_LOCALID", "0"}, {"SLURM_GPUS_PER_TASK", "1"}}, 1),
              "")
        << variable;
  }
}

// As with `srun --gpu-bind=single:1` or a script that sets CUDA_VISIBLE_DEVICES for each rank.
TEST(PickGpu, ARankThatSeesItsOwnGpuOnlyIsToldHowToSaySo) {
  const char* const kWayOut = "say so with LOCKSTEP_GPU_INDEX=0";
  EXPECT_NE(refusal({{"SLURM_LOCALID", "1"}}, 1).find(kWayOut), std::string::npos);
  EXPECT_EQ(pick_gpu(env_of({{"SLURM_LOCALID", "1"}, {"LOCKSTEP_GPU_INDEX", "0"}}), 1), 0);
  EXPECT_EQ(refusal({{"SLURM_LOCALID", "3"}}, 2).find(kWayOut), std::string::npos)
      << "it would be the first of two";
  EXPECT_EQ(refusal({{"LOCKSTEP_LOCAL_RANK", "0"}, {"LOCKSTEP_GPU_INDEX", "1"}}, 1).find(kWayOut),
            std::string::npos)
      << "the launcher has said so";
}

TEST(PickGpu, GpusThatStayIdleAreTold) {
  const auto idle = [](const Variables& variables, int num_gpus) {
    return idle_gpus(env_of(variables), num_gpus);
  };
  const Variables slurm = {{"SLURM_LOCALID", "1"}, {"SLURM_GPUS_PER_TASK", "2"}};
  EXPECT_EQ(
      idle(slurm, 2),
      "this task has 2 GPUs of its own (SLURM_GPUS_PER_TASK=2) and a rank computes on one: it "
      "takes cuda:0, the others stay idle; start a task for each GPU (--gpus-per-task=1)");
  EXPECT_EQ(idle(slurm, 1), "");
  EXPECT_EQ(idle(slurm, 4), "") << "these are all tasks'";
  EXPECT_EQ(idle({{"SLURM_LOCALID", "1"}}, 4), "");

  const Variables bare = {{"RANK", "3"}, {"WORLD_SIZE", "8"}};
  EXPECT_NE(idle(bare, 4).find("this one takes cuda:0 of 4 GPUs, as every other on this host does"),
            std::string::npos)
      << idle(bare, 4);
  EXPECT_EQ(idle(bare, 1), "") << "mostly one rank for each host, as in a pod";
  EXPECT_EQ(idle({{"RANK", "0"}, {"WORLD_SIZE", "1"}}, 4), "");
  EXPECT_EQ(idle({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "3"}}, 4), "");
  EXPECT_EQ(idle({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCKSTEP_GPU_INDEX", "3"}}, 4), "");
  EXPECT_EQ(idle({}, 4), "");
}

TEST(PickGpu, ALocalRankThatIsNoNumberIsNamed) {
  EXPECT_THROW(pick_gpu(env_of({{"LOCKSTEP_GPU_INDEX", "-1"}}), 2), UsageError);
  EXPECT_THROW(pick_gpu(env_of({{"LOCAL_RANK", "one"}}), 2), UsageError);
}

}  // namespace
}  // namespace lockstep::device

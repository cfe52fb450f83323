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

TEST(PickGpu, ALocalRankThatIsNoNumberIsNamed) {
  EXPECT_THROW(pick_gpu(env_of({{"LOCKSTEP_GPU_INDEX", "-1"}}), 2), UsageError);
  EXPECT_THROW(pick_gpu(env_of({{"LOCAL_RANK", "one"}}), 2), UsageError);
}

}  // namespace
}  // namespace lockstep::device

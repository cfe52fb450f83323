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

TEST(PickGpu, ALocalRankThatIsNoNumberIsNamed) {
  EXPECT_THROW(pick_gpu(env_of({{"LOCAL_RANK", "one"}}), 2), UsageError);
}

}  // namespace
}  // namespace lockstep::device

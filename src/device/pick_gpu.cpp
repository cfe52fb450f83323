#include "device/pick_gpu.h"

#include <climits>

#include <lockstep/base/error.h>

namespace lockstep::device {
namespace {

int rank_on_host(const base::Env& env) {
  for (const char* variable : {"LOCKSTEP_LOCAL_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                               "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    if (const auto rank = env.integer(variable, 0, INT_MAX)) {
      return static_cast<int>(*rank);
    }
  }
  return 0;
}

}  // namespace

int pick_gpu(const base::Env& env, int num_gpus) {
  const int rank = rank_on_host(env);
  if (num_gpus == 1 && env.has("SLURM_LOCALID") && env.has("SLURM_GPUS_PER_TASK")) {
    return 0;  // Slurm shows each task its own GPU only, and each calls it number 0
  }
  if (rank < num_gpus) {
    return rank;
  }
  if (env.flag("LOCKSTEP_SHARE_GPU").value_or(false)) {
    return rank % num_gpus;
  }
  throw UsageError(
      "local rank {} has no GPU of its own: this process sees {}; start at most {} ranks on this "
      "host, or let them share with `lockstep run --share-gpu` (LOCKSTEP_SHARE_GPU=1), or use the "
      "CPU with LOCKSTEP_DEVICE=cpu",
      rank, num_gpus == 1 ? "one GPU" : fmt::format("{} GPUs", num_gpus), num_gpus);
}

}  // namespace lockstep::device

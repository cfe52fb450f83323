#include "device/pick_gpu.h"

#include <climits>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::device {
namespace {

// LOCAL_RANK comes first: with --virtual-local-rank it is the number among the GPUs that the rank
// sees, and LOCKSTEP_LOCAL_RANK stays the number on the node.
int rank_on_host(const base::Env& env) {
  for (const char* variable : {"LOCAL_RANK", "LOCKSTEP_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                               "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    if (const auto rank = env.integer(variable, 0, INT_MAX)) {
      return static_cast<int>(*rank);
    }
  }
  return 0;
}

// Slurm shows each task its own GPU only, and each calls it number 0. A launcher between srun and
// this process has numbers of its own, which say more.
bool is_slurms_only_gpu(const base::Env& env, int num_gpus) {
  return num_gpus == 1 && env.has("SLURM_LOCALID") && env.has("SLURM_GPUS_PER_TASK") &&
         !env.has("LOCKSTEP_LOCAL_RANK") && !env.has("LOCAL_RANK");
}

std::string who(int local_rank, int number) {
  return local_rank == number
             ? fmt::format("local rank {}", local_rank)
             : fmt::format("local rank {}, which is number {} on this host (LOCKSTEP_GPU_INDEX),",
                           local_rank, number);
}

}  // namespace

int pick_gpu(const base::Env& env, int num_gpus) {
  const int rank = rank_on_host(env);
  if (is_slurms_only_gpu(env, num_gpus)) {
    return 0;
  }
  const int number = static_cast<int>(env.integer("LOCKSTEP_GPU_INDEX", 0, INT_MAX).value_or(rank));
  if (number < num_gpus) {
    return number;
  }
  if (env.flag("LOCKSTEP_SHARE_GPU").value_or(false)) {
    return number % num_gpus;
  }
  throw UsageError(
      "{} has no GPU of its own: this process sees {}; start at most {} on this host, or let them "
      "share with `lockstep run --share-gpu` (LOCKSTEP_SHARE_GPU=1), or use the CPU with "
      "LOCKSTEP_DEVICE=cpu",
      who(rank, number), num_gpus == 1 ? "one GPU" : fmt::format("{} GPUs", num_gpus),
      num_gpus == 1 ? "one rank" : fmt::format("{} ranks", num_gpus));
}

}  // namespace lockstep::device

#include "device/pick_gpu.h"

#include <climits>
#include <string_view>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::device {
namespace {

constexpr const char* kIndex = "LOCKSTEP_GPU_INDEX";
constexpr const char* kSlurmLocalId = "SLURM_LOCALID";
constexpr const char* kSlurmGpus = "SLURM_GPUS_PER_TASK";

// The process among those of its host, and the variable that says so; null if none does.
struct LocalRank {
  int rank = 0;
  const char* variable = nullptr;
};

// LOCAL_RANK comes first: with --virtual-local-rank it is the number among the GPUs that the rank
// sees, and LOCKSTEP_LOCAL_RANK stays the number on the node.
LocalRank rank_on_host(const base::Env& env) {
  for (const char* variable : {"LOCAL_RANK", "LOCKSTEP_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                               "MPI_LOCALRANKID", kSlurmLocalId}) {
    if (const auto rank = env.integer(variable, 0, INT_MAX)) {
      return {static_cast<int>(*rank), variable};
    }
  }
  return {};
}

// What Slurm was asked for, "2" or "a100:2".
int gpus_per_task(const base::Env& env) {
  const std::string text = env.text(kSlurmGpus).value_or("");
  const std::string number = text.substr(text.rfind(':') + 1);
  return static_cast<int>(base::parse_integer(number, 1, INT_MAX).value_or(text.empty() ? 0 : 1));
}

// Slurm shows each task its own GPUs only, and calls the first of them number 0. A launcher between
// srun and this process has numbers of its own, which say more.
bool sees_slurms_share(const base::Env& env, int num_gpus) {
  const char* const variable = rank_on_host(env).variable;
  return variable != nullptr && std::string_view(variable) == kSlurmLocalId &&
         num_gpus <= gpus_per_task(env);
}

std::string who(int local_rank, int number) {
  return local_rank == number
             ? fmt::format("local rank {}", local_rank)
             : fmt::format("local rank {}, which is number {} on this host (LOCKSTEP_GPU_INDEX),",
                           local_rank, number);
}

}  // namespace

int pick_gpu(const base::Env& env, int num_gpus) {
  const LocalRank local = rank_on_host(env);
  const auto index = env.integer(kIndex, 0, INT_MAX);
  const int own = sees_slurms_share(env, num_gpus) ? 0 : local.rank;
  const int number = static_cast<int>(index.value_or(own));
  if (number < num_gpus) {
    return number;
  }
  if (env.flag("LOCKSTEP_SHARE_GPU").value_or(false)) {
    return number % num_gpus;
  }
  throw UsageError(
      "{} has no GPU of its own: this process sees {}; start at most {} on this host, or let them "
      "share with `lockstep run --share-gpu` (LOCKSTEP_SHARE_GPU=1), or use the CPU with "
      "LOCKSTEP_DEVICE=cpu{}",
      who(local.rank, number), num_gpus == 1 ? "one GPU" : fmt::format("{} GPUs", num_gpus),
      num_gpus == 1 ? "one rank" : fmt::format("{} ranks", num_gpus),
      num_gpus == 1 && !index ? "; where each rank sees a GPU of its own only, say so with "
                                "LOCKSTEP_GPU_INDEX=0"
                              : "");
}

std::string idle_gpus(const base::Env& env, int num_gpus) {
  if (num_gpus == 1 || env.has(kIndex)) {
    return "";
  }
  if (sees_slurms_share(env, num_gpus)) {
    return fmt::format(
        "this task has {} GPUs of its own ({}={}) and a rank computes on one: it takes cuda:{}, "
        "the others stay idle; start a task for each GPU (--gpus-per-task=1)",
        num_gpus, kSlurmGpus, env.text(kSlurmGpus).value_or(""), pick_gpu(env, num_gpus));
  }
  const bool has_peers = env.integer("WORLD_SIZE", 1, INT_MAX).value_or(1) > 1;
  if (env.has("RANK") && has_peers && rank_on_host(env).variable == nullptr) {
    return fmt::format(
        "RANK is set, but LOCAL_RANK is not, which numbers the ranks of a host: this one takes "
        "cuda:0 of {} GPUs, as every other on this host does, and the other GPUs stay idle; set "
        "LOCAL_RANK, or start the ranks with `lockstep run`",
        num_gpus);
  }
  return "";
}

}  // namespace lockstep::device

#include "train/threads.h"

#include <algorithm>

#include <ATen/ops/full.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/env.h"
#include "base/process/cores.h"
#include "comm/start/host_cores.h"
#include "train/train_state.h"

namespace lockstep::train {
namespace {

constexpr int kMostThreads = 1024;

// Reads the first number alone: "4,2" is for nested regions, of which there are none.
int openmp_limit() {
  const std::string text = base::Env().text("OMP_NUM_THREADS").value_or("");
  const auto limit = base::parse_integer(text.substr(0, text.find(',')), 1, kMostThreads);
  return static_cast<int>(limit.value_or(kMostThreads));
}

int share_of_host(Group& group, int shards) {
  const comm::HostCores host = comm::host_cores(group)[static_cast<size_t>(group.rank())];
  const int shards_here = host.num_ranks * std::max(1, shards / group.size());
  const int share =
      std::min({host.num_cores / shards_here, base::num_usable_cores(), openmp_limit()});
  const at::Tensor fewest = at::full({1}, std::max(1, share), at::kInt);
  group.all_reduce(fewest, {.op = ReduceOp::Min});
  return fewest.item<int>();
}

}  // namespace

int choose_threads(Group& group, const TrainerOptions& options, int shards,
                   const std::optional<Checkpoint>& checkpoint) {
  if (options.threads > 0) {
    return options.threads;
  }
  const bool is_alone = group.size() == 1 && shards == 1;
  const int share = is_alone ? 0 : share_of_host(group, shards);
  if (!checkpoint || shards_of(*checkpoint) != shards) {
    return share;
  }
  const int before = threads_of(*checkpoint);
  if (share > 0 && before > share && group.rank() == 0) {
    log::warn("train",
              "this run began with {} threads per rank and goes on so, for the same bits, though "
              "there are cores for {}; set train.threads to change it",
              before, share);
  }
  return before;
}

}  // namespace lockstep::train

#pragma once

// How many threads a rank computes with.

#include <optional>

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/train/trainer.h>

namespace lockstep::train {

// Collective; the same on every rank. TrainerOptions::threads, if it is set; else as many as the
// run that `checkpoint` is of began with, since their number is in the bits; else the cores of a
// host, shared among the shards there (not among the ranks: 8 shards give the same bits on 8 ranks
// and on 2), but no more than OMP_NUM_THREADS and the cores this rank is bound to. 0: as libtorch
// has it, which is all cores; for one rank with one shard.
int choose_threads(Group& group, const TrainerOptions& options, int shards,
                   const std::optional<Checkpoint>& checkpoint);

}  // namespace lockstep::train

#pragma once

#include <string>

#include "base/env.h"

namespace lockstep::device {

// The number of this rank's GPU, of `num_gpus` > 0 that the process sees; see local_device(). It is
// LOCKSTEP_GPU_INDEX, which the launcher sets, or else the rank's number on its host: LOCAL_RANK,
// or what MPI and Slurm call it; 0 if there is none, and where Slurm shows it its own GPUs only.
int pick_gpu(const base::Env& env, int num_gpus);

// A sentence where pick_gpu() leaves GPUs idle that were meant for this rank, or for others that
// will take the same one; empty mostly. Throws as pick_gpu() does.
std::string idle_gpus(const base::Env& env, int num_gpus);

}  // namespace lockstep::device

#pragma once

#include "base/env.h"

namespace lockstep::device {

// The number of this rank's GPU, of `num_gpus` > 0 that the process sees; see local_device(). It is
// LOCKSTEP_GPU_INDEX, which the launcher sets, or else the rank's number on its host: LOCAL_RANK,
// or what MPI and Slurm call it; 0 if there is none.
int pick_gpu(const base::Env& env, int num_gpus);

}  // namespace lockstep::device

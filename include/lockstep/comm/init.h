#pragma once

// init(): from the environment to a Group.

#include <chrono>

#include <lockstep/comm/group.h>

namespace lockstep {

struct InitOptions {
  std::chrono::milliseconds timeout = kDefaultTimeout;  // of the operations of the group
  std::chrono::milliseconds start_timeout = std::chrono::minutes(5);  // until all ranks have come
};

// The group of all ranks of this job. Believes, in this order: LOCKSTEP_* (`lockstep run`); RANK
// with TORCHELASTIC_RUN_ID (torchrun); OMPI_* (mpirun); SLURM_* of an srun step; a bare RANK with
// WORLD_SIZE, MASTER_ADDR and MASTER_PORT; and if none is set, makes a group of one. Logs once what
// it chose and why. docs/formats/environment.md lists the variables.
//
// Call it once, at the start. Throws UsageError when the variables contradict each other,
// TimeoutError when ranks are missing after `start_timeout`.
Group init(InitOptions options = {});

}  // namespace lockstep

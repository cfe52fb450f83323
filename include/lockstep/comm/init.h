#pragma once

// init(): the way from the environment of a process to the Group of all ranks of its job.
//
// Example:
//   auto group = lockstep::init({.timeout = std::chrono::minutes(5)});
//   lockstep::log::info("app", "rank {} of {}", group.rank(), group.size());
//
// What init() does to the process:
//   - It sets the rank that the log shows, and logs once which backend it chose and why.
//   - With more than one rank it starts a thread that listens to the job's store; rank 0 also
//     serves the store, unless `lockstep run` does. Another thread starts with the first
//     asynchronous operation. All of them end with the last copy of the Group.
//   - It changes no signal handlers, no environment variables, no number of threads and no
//     allocator. DistributedDataParallel does replace libtorch's CPU allocator: see there.
//
// When the Group ends, the process that serves the store waits up to ten seconds for the other
// ranks to leave, so that none of them loses the store while it still uses the group.

#include <chrono>

#include <lockstep/comm/group.h>

namespace lockstep {

struct InitOptions {
  std::chrono::milliseconds timeout = kDefaultTimeout;  // for each operation of the group
  std::chrono::milliseconds start_timeout = std::chrono::minutes(5);  // until all ranks are there
};

// Collective. Returns the group of all ranks of this job. The first of these that is set decides:
//   1. LOCKSTEP_RANK and the other LOCKSTEP_* variables (`lockstep run`)
//   2. RANK with TORCHELASTIC_RUN_ID (torchrun)
//   3. OMPI_* (mpirun)
//   4. SLURM_* of an srun step
//   5. RANK alone, with WORLD_SIZE, MASTER_ADDR and MASTER_PORT
//   6. nothing: the result is a group of one, which needs no store and no other process
// docs/formats/environment.md lists all variables.
//
// Call it once, at the start of the program, keep the Group and pass copies of it on. After an
// error in a collective, make the next group with make_group() over the same store.
//
// Throws UsageError if variables are missing, malformed or contradictory, or if this process is in
// the job's group already; TimeoutError if ranks are missing after `start_timeout`; PeerLostError
// if one of them is lost meanwhile; and IoError if the store cannot be served.
Group init(InitOptions options = {});

}  // namespace lockstep

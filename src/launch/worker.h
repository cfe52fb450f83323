#pragma once

// A worker's process, from fork to exec.

#include <sys/types.h>

#include "launch/plan.h"

namespace lockstep {

struct WorkerStart {
  const NodePlan* node = nullptr;      // REQUIRED
  const WorkerPlan* worker = nullptr;  // REQUIRED
  int stdout_fd = -1;                  // REQUIRED
  int stderr_fd = -1;                  // REQUIRED
  int control_fd = -1;                 // REQUIRED: to the agent, for Started and CannotStart
  int host_proc_fd = -1;               // the host's /proc, if the worker sees another
};

// Forks and executes the program in a process group of its own, with /dev/null as its input,
// default signal handling, and death with its parent. Call it in a process without threads.
pid_t start_worker(const WorkerStart& start);

}  // namespace lockstep

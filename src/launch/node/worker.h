#pragma once

// A worker's process, from fork to exec.

#include <sys/types.h>

#include "launch/plan.h"

namespace lockstep::launch {

struct WorkerStart {
  const NodePlan* node = nullptr;      // REQUIRED
  const WorkerPlan* worker = nullptr;  // REQUIRED
  int stdin_fd = -1;                   // -1: /dev/null; a terminal becomes its own
  int stdout_fd = -1;                  // REQUIRED
  int stderr_fd = -1;                  // REQUIRED
  int control_fd = -1;                 // REQUIRED: to the agent, for Started and CannotStart
  int host_proc_fd = -1;               // the host's /proc, if the worker sees another
};

// Forks and executes the program in a session of its own, so that it has no terminal but the one it
// is given here, with default signal handling, and death with its parent. Call it in a process
// without threads.
pid_t start_worker(const WorkerStart& start);

}  // namespace lockstep::launch

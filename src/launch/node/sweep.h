#pragma once

// Finding and ending every descendant of this process, whatever sessions and groups they moved to.

#include <cstdint>
#include <sys/types.h>
#include <vector>

#include "base/deadline.h"

namespace lockstep::launch {

struct Descendant {
  pid_t pid = 0;
  pid_t group = 0;
  uint64_t start_ticks = 0;  // when it began; with the pid it identifies the process

  bool operator==(const Descendant&) const = default;
};

// Living descendants (not zombies) of this process, from one walk over /proc. `spared` and what
// descends from it is left out. Relies on adopt_orphans(): the children of a dead child are still
// descendants of this process.
std::vector<Descendant> find_descendants(const std::vector<pid_t>& spared = {});
std::vector<pid_t> living_descendants(const std::vector<pid_t>& spared = {});  // their pids

// Like kill(2), but only if the process still lives: its pid may belong to another one by now.
void signal_descendant(const Descendant& process, int signal);

// Kills (SIGKILL) and reaps all of them until none is left, and returns those that are still there
// at the deadline: processes that the kernel cannot kill now (a dead network file system).
std::vector<pid_t> kill_descendants(base::Deadline deadline, const std::vector<pid_t>& spared = {});

// True if the process has begun to exit, by itself or killed, though it may not be a zombie yet.
bool is_exiting(pid_t pid);

// True if the process has a handler for the signal.
bool catches(pid_t pid, int signal);

// True if the process ignores it.
bool ignores(pid_t pid, int signal);

}  // namespace lockstep::launch

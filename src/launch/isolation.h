#pragma once

// How a guardian makes sure that no descendant of a worker outlives it.

#include <optional>
#include <string>

namespace lockstep {

enum class IsolationMode {
  Auto,          // PidNamespace where the system permits it, else Guardian
  PidNamespace,  // the guardian is pid 1 of a PID namespace: the kernel kills all that is in it
  Guardian,      // the guardian adopts orphans and kills its descendants when its agent is gone
};

// "auto", "pidns" or "guardian"; throws UsageError otherwise.
IsolationMode parse_isolation(const std::string& text);

// Tries in a child whether a PID namespace with a /proc of its own can be made: nothing if so, else
// the reason ("unshare(CLONE_NEWPID): Operation not permitted").
std::optional<std::string> pid_namespace_refusal();

// What Auto means here; throws UsageError if PidNamespace is demanded and refused.
IsolationMode choose_isolation(IsolationMode wanted);

// Makes the next fork() of this process the first of a new PID namespace. Throws IoError.
void unshare_pid_namespace();

// In that first process: a private mount namespace where /proc shows the new PID namespace, so that
// getpid() and /proc agree (psutil, ps, the sanitizers). Throws IoError.
void mount_own_proc();

}  // namespace lockstep

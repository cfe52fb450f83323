#pragma once

// How a guardian makes sure that no descendant of a worker outlives it.

#include <optional>
#include <string>

namespace lockstep::base {

enum class IsolationMode {
  Auto,           // the first of the following that the system permits
  PidNamespace,   // the guardian is pid 1 of a PID namespace: the kernel kills all that is in it
  UserNamespace,  // the same for an ordinary user, inside a user namespace
  Guardian,       // the guardian adopts orphans and kills its descendants when its agent is gone
};

inline bool has_pid_namespace(IsolationMode mode) {
  return mode == IsolationMode::PidNamespace || mode == IsolationMode::UserNamespace;
}

// "auto", "pidns", "userns" or "guardian"; throws UsageError otherwise.
IsolationMode parse_isolation(const std::string& text);

// Tries in a child whether a PID namespace with a /proc of its own can be made in this way: nothing
// if so, else the reason ("unshare(CLONE_NEWPID): Operation not permitted").
std::optional<std::string> pid_namespace_refusal(IsolationMode mode = IsolationMode::PidNamespace);

// What Auto means here; throws UsageError if a namespace is demanded and refused.
IsolationMode choose_isolation(IsolationMode wanted);

// Makes the next fork() of this process the first of a new PID namespace. In UserNamespace this
// process is in a new user namespace from then on, as who it was. Throws IoError.
void unshare_pid_namespace(IsolationMode mode);

// In that first process: a private mount namespace where /proc shows the new PID namespace, so that
// getpid() and /proc agree (psutil, ps, the sanitizers). Throws IoError.
void mount_own_proc();

}  // namespace lockstep::base

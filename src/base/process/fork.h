#pragma once

// Forking without exec: the processes of a job that run lockstep's own code.

#include <functional>
#include <string>
#include <sys/resource.h>
#include <sys/types.h>
#include <vector>

namespace lockstep::base {

// Forks. The child runs `body`, ends with the code it returns (1 and a line on standard error if it
// throws) and never comes back into the caller's code: no destructor of the parent's objects runs
// twice. Throws IoError if there can be no further process.
pid_t fork_child(const std::function<int()>& body);

// Closes every descriptor above 2 that is not in `keep`. What a forked process does first: a
// descriptor that it holds by accident would hide the death of the process that it belongs to.
void close_all_except(std::vector<int> keep);

// Asks the kernel to kill this process (SIGKILL) when its parent dies, and ends it now if `parent`
// is already gone.
void die_with_parent(pid_t parent);

// Lets this process open as many files as it may: a head has a connection from every rank, an agent
// four descriptors per rank while starting. What the limit was before.
rlimit raise_file_limit();

// Becomes the program (searched in PATH). Returns only if it cannot: the errno that says why.
int execute(const std::vector<std::string>& command, const std::vector<std::string>& environment);

// The environment of this process, as "NAME=value".
std::vector<std::string> own_environment();

// Orphaned descendants of this process become its children instead of init's.
void adopt_orphans();

}  // namespace lockstep::base

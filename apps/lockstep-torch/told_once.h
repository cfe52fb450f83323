#pragma once

// A mistake that every rank makes, told once.

#include <functional>
#include <string>

#include <lockstep/comm/group.h>

namespace lockstep {

// Collective: `work` on every rank. What one of them throws is printed by the first rank that
// threw, behind "lockstep COMMAND: "; the others stay until it is said, since the launcher stops
// all ranks when the first of them fails. Returns the exit code: 0; 2 for a UsageError, 1 for
// another Error.
int told_once(const std::string& command, Group& group, const std::function<void()>& work);

}  // namespace lockstep

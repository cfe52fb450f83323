#pragma once

// Where callbacks of users run: on threads of their own, so that they may wait for other
// operations, destroy the group, or fail, without harm to the threads that move data.

#include <functional>

namespace lockstep::comm {

// Runs `job` soon, on a thread that no other job holds up; or at once, on this one, if the system
// gives no other. What it throws is logged.
void run_callback(std::function<void()> job);

// The same, at once and on this thread.
void run_callback_here(const std::function<void()>& job) noexcept;

}  // namespace lockstep::comm

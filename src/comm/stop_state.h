#pragma once

// Whether this process was asked to save and end: by the launcher, or by a signal.

#include <atomic>
#include <cstdint>

namespace lockstep::comm::stop_state {

// The time of the first request, in milliseconds since the clock's start; 0 if there is none.
inline std::atomic<int64_t> asked_ms = 0;

// The first time wins. Async-signal-safe. Returns when it was asked, which is now if this was
// first.
int64_t ask() noexcept;

int64_t now_ms() noexcept;

}  // namespace lockstep::comm::stop_state

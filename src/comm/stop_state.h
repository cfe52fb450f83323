#pragma once

// Whether this process was asked to save and end: by the launcher, or by a signal.

#include <atomic>
#include <cstdint>

namespace lockstep::comm::stop_state {

// Since the clock's start, in milliseconds; 0: nobody has asked. Set by the first who asks.
inline std::atomic<int64_t> asked_ms = 0;

// The first time wins. Async-signal-safe. Returns when it was asked, which is now if this was
// first.
int64_t ask() noexcept;

int64_t now_ms() noexcept;

}  // namespace lockstep::comm::stop_state
